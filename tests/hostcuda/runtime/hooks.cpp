// The receiver of what -fsanitize=thread puts before every access. Instrumented modules are linked with this instead of
// libtsan, so each load and store of a kernel comes by here.
#include "memory.h"

namespace {

using kv_host::Access;
using kv_host::check_access;

constexpr bool kReads = true, kWrites = true, kNo = false;

void plain(const void* address, size_t bytes, bool reads, bool writes, void* code) {
  check_access({(uintptr_t)address, bytes, reads, writes, false, (uintptr_t)code});
}

void atomic(const volatile void* address, size_t bytes, bool reads, bool writes, void* code) {
  check_access({(uintptr_t)address, bytes, reads, writes, true, (uintptr_t)code});
}

}  // namespace

#define CODE __builtin_return_address(0)

uint4 kv_host::checked_load16_relaxed(const void* address) {
  atomic(address, 16, kReads, kNo, CODE);
  return load16(address);
}

void kv_host::checked_store16_relaxed(void* address, uint4 value) {
  atomic(address, 16, kNo, kWrites, CODE);
  store16(address, value);
}

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define PLAIN(N)                                                                             \
  void __tsan_read##N(void* address) { plain(address, N, kReads, kNo, CODE); }               \
  void __tsan_write##N(void* address) { plain(address, N, kNo, kWrites, CODE); }             \
  void __tsan_unaligned_read##N(void* address) { plain(address, N, kReads, kNo, CODE); }     \
  void __tsan_unaligned_write##N(void* address) { plain(address, N, kNo, kWrites, CODE); }   \
  void __tsan_volatile_read##N(void* address) { plain(address, N, kReads, kNo, CODE); }      \
  void __tsan_volatile_write##N(void* address) { plain(address, N, kNo, kWrites, CODE); }
PLAIN(1) PLAIN(2) PLAIN(4) PLAIN(8) PLAIN(16)
#undef PLAIN

void __tsan_read_range(void* address, unsigned long bytes) { plain(address, bytes, kReads, kNo, CODE); }
void __tsan_write_range(void* address, unsigned long bytes) { plain(address, bytes, kNo, kWrites, CODE); }

// No other OS thread runs, so any order will do for the operation itself.
#define CHANGE(bits, T, name)                                                                \
  T __tsan_atomic##bits##_##name(volatile T* address, T value, int) {                        \
    atomic(address, sizeof(T), kReads, kWrites, CODE);                                       \
    return __atomic_##name(address, value, __ATOMIC_SEQ_CST);                                \
  }
#define ATOMIC(bits, T)                                                                                \
  T __tsan_atomic##bits##_load(const volatile T* address, int) {                                       \
    atomic(address, sizeof(T), kReads, kNo, CODE);                                                     \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                 \
  }                                                                                                    \
  void __tsan_atomic##bits##_store(volatile T* address, T value, int) {                                \
    atomic(address, sizeof(T), kNo, kWrites, CODE);                                                    \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                \
  }                                                                                                    \
  T __tsan_atomic##bits##_exchange(volatile T* address, T value, int) {                                \
    atomic(address, sizeof(T), kReads, kWrites, CODE);                                                 \
    return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);                                      \
  }                                                                                                    \
  CHANGE(bits, T, fetch_add) CHANGE(bits, T, fetch_sub) CHANGE(bits, T, fetch_and)                     \
  CHANGE(bits, T, fetch_or) CHANGE(bits, T, fetch_xor)                                                 \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* address, T* expected, T wanted, int, int) { \
    atomic(address, sizeof(T), kReads, kWrites, CODE);                                                 \
    return __atomic_compare_exchange_n(address, expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                                    \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* address, T* expected, T wanted, int, int) {   \
    atomic(address, sizeof(T), kReads, kWrites, CODE);                                                 \
    return __atomic_compare_exchange_n(address, expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                                    \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* address, T expected, T wanted, int, int) {  \
    atomic(address, sizeof(T), kReads, kWrites, CODE);                                                 \
    __atomic_compare_exchange_n(address, &expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return expected;                                                                                   \
  }
ATOMIC(8, unsigned char)
ATOMIC(16, unsigned short)
ATOMIC(32, unsigned)
ATOMIC(64, unsigned long)
#undef ATOMIC
#undef CHANGE

}  // extern "C"
