// The receiver of what -fsanitize=thread puts before every access. Instrumented modules are linked with this instead of
// libtsan, so each load and store of a kernel comes by here.
#include "memory.h"
#include "order.h"

namespace {

using namespace kv_host;

constexpr bool kReads = true, kWrites = true, kNo = false;
#define CODE ((uintptr_t)__builtin_return_address(0))

void plain(const void* address, size_t bytes, bool reads, bool writes, uintptr_t code) {
  check_access({(uintptr_t)address, bytes, reads, writes, false, code});
}

// No other OS thread runs, so any order will do for the operations themselves.

template <class T>
void check_atomic(const volatile T* address, bool reads, bool writes, uintptr_t code) {
  check_access({(uintptr_t)address, sizeof(T), reads, writes, true, code});
}

template <class T>
T load(const volatile T* address, int order, uintptr_t code) {
  check_atomic(address, kReads, kNo, code);
  order_by(Operation::kLoad, (uintptr_t)address, order);
  return __atomic_load_n(address, __ATOMIC_SEQ_CST);
}

template <class T>
void store(volatile T* address, T value, int order, uintptr_t code) {
  check_atomic(address, kNo, kWrites, code);
  order_by(Operation::kStore, (uintptr_t)address, order);
  __atomic_store_n(address, value, __ATOMIC_SEQ_CST);
}

// Before a change of any kind but compare-and-swap.
template <class T>
volatile T* changing(volatile T* address, int order, uintptr_t code) {
  check_atomic(address, kReads, kWrites, code);
  order_by(Operation::kChange, (uintptr_t)address, order);
  return address;
}

template <class T>
bool swap(volatile T* address, T* expected, T wanted, int done, int not_done, uintptr_t code) {
  check_atomic(address, kReads, kWrites, code);
  const bool is_done =
      __atomic_compare_exchange_n(address, expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  order_by(is_done ? Operation::kChange : Operation::kLoad, (uintptr_t)address, is_done ? done : not_done);
  return is_done;
}

}  // namespace

uint4 kv_host::checked_load16_relaxed(const void* address) {
  check_access({(uintptr_t)address, 16, kReads, kNo, true, CODE});
  return load16(address);
}

void kv_host::checked_store16_relaxed(void* address, uint4 value) {
  check_access({(uintptr_t)address, 16, kNo, kWrites, true, CODE});
  store16(address, value);
}

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define PLAIN(N)                                                                           \
  void __tsan_read##N(void* address) { plain(address, N, kReads, kNo, CODE); }             \
  void __tsan_write##N(void* address) { plain(address, N, kNo, kWrites, CODE); }           \
  void __tsan_unaligned_read##N(void* address) { plain(address, N, kReads, kNo, CODE); }   \
  void __tsan_unaligned_write##N(void* address) { plain(address, N, kNo, kWrites, CODE); } \
  void __tsan_volatile_read##N(void* address) { plain(address, N, kReads, kNo, CODE); }    \
  void __tsan_volatile_write##N(void* address) { plain(address, N, kNo, kWrites, CODE); }
PLAIN(1) PLAIN(2) PLAIN(4) PLAIN(8) PLAIN(16)
#undef PLAIN

void __tsan_read_range(void* address, unsigned long bytes) { plain(address, bytes, kReads, kNo, CODE); }
void __tsan_write_range(void* address, unsigned long bytes) { plain(address, bytes, kNo, kWrites, CODE); }

#define CHANGE(bits, T, name)                                                        \
  T __tsan_atomic##bits##_##name(volatile T* address, T value, int order) {          \
    return __atomic_##name(changing(address, order, CODE), value, __ATOMIC_SEQ_CST); \
  }
#define SWAP(bits, T, strength)                                                                                     \
  int __tsan_atomic##bits##_compare_exchange_##strength(volatile T* word, T* expected, T wanted, int yes, int no) { \
    return swap(word, expected, wanted, yes, no, CODE);                                                             \
  }
#define ATOMIC(bits, T)                                                                                          \
  T __tsan_atomic##bits##_load(const volatile T* word, int order) { return load(word, order, CODE); }            \
  void __tsan_atomic##bits##_store(volatile T* word, T value, int order) { store(word, value, order, CODE); }    \
  T __tsan_atomic##bits##_exchange(volatile T* word, T value, int order) {                                       \
    return __atomic_exchange_n(changing(word, order, CODE), value, __ATOMIC_SEQ_CST);                            \
  }                                                                                                              \
  CHANGE(bits, T, fetch_add) CHANGE(bits, T, fetch_sub) CHANGE(bits, T, fetch_and)                               \
  CHANGE(bits, T, fetch_or) CHANGE(bits, T, fetch_xor) SWAP(bits, T, strong) SWAP(bits, T, weak)                 \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* word, T expected, T wanted, int yes, int no) {        \
    swap(word, &expected, wanted, yes, no, CODE);                                                                \
    return expected;                                                                                             \
  }
ATOMIC(8, unsigned char)
ATOMIC(16, unsigned short)
ATOMIC(32, unsigned)
ATOMIC(64, unsigned long)
#undef ATOMIC
#undef SWAP
#undef CHANGE

}  // extern "C"
