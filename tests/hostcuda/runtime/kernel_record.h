// What a compiled module tells of each kernel: its C signature in words, how to call it, its launch bound.
//
// Comes after the source's own text, followed by one KV_HOST_EXPORT(symbol, launch bound) a kernel.
#ifndef KV_HOST_KERNEL_RECORD_H
#define KV_HOST_KERNEL_RECORD_H

#include <cstddef>
#include <type_traits>
#include <utility>

namespace kv_host {

struct KernelRecord {
  const char* signature;        // such as "const u8*, u32"
  void (*entry)(void** values);  // as cuLaunchKernel passes them: an address a value
  unsigned launch_bound;
  char* shared_begin;  // of the module's static shared memory; both null if it has none
  char* shared_end;
};

// Defined by the linker where the section exists.
extern "C" char __start_kvshared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_kvshared[] __attribute__((weak, visibility("hidden")));

template <class T>
constexpr const char* scalar_name() {
  if constexpr (std::is_same_v<T, kv_u8>) return "u8";
  if constexpr (std::is_same_v<T, kv_u16>) return "u16";
  if constexpr (std::is_same_v<T, kv_u32>) return "u32";
  if constexpr (std::is_same_v<T, kv_u64>) return "u64";
  if constexpr (std::is_same_v<T, kv_i32>) return "i32";
  if constexpr (std::is_same_v<T, kv_i64>) return "i64";
  if constexpr (std::is_same_v<T, float>) return "float";
  return "type outside the dialect";
}

class Signature {
 public:
  template <class T>
  void add() {
    if (length_ != 0) append(", ");
    if constexpr (std::is_pointer_v<T>) {
      using Target = std::remove_pointer_t<T>;
      if (std::is_const_v<Target>) append("const ");
      append(scalar_name<std::remove_const_t<Target>>());
      append("*");
    } else {
      append(scalar_name<T>());
    }
  }
  const char* text() const { return text_; }

 private:
  void append(const char* more) {
    while (*more != 0 && length_ + 1 < sizeof text_) text_[length_++] = *more++;
  }
  char text_[2048] = {};
  std::size_t length_ = 0;
};

template <class... Values>
const char* signature_of(void (*)(Values...)) {
  static const Signature signature = [] {
    Signature built;
    (built.add<Values>(), ...);
    return built;
  }();
  return signature.text();
}

template <class... Values, std::size_t... Positions>
__attribute__((no_sanitize("thread"))) void call(void (*kernel)(Values...), [[maybe_unused]] void** values,
                                                 std::index_sequence<Positions...>) {
  kernel(*(Values*)values[Positions]...);
}

template <class... Values>
__attribute__((no_sanitize("thread"))) void call(void (*kernel)(Values...), void** values) {
  call(kernel, values, std::index_sequence_for<Values...>{});
}

}  // namespace kv_host

#define KV_HOST_EXPORT(symbol, bound)                                                                          \
  extern "C" __attribute__((no_sanitize("thread"))) void kv_host_enter_##symbol(void** values) {               \
    kv_host::call(symbol, values);                                                                             \
  }                                                                                                            \
  extern "C" __attribute__((no_sanitize("thread"))) const kv_host::KernelRecord* kv_host_record_##symbol() {   \
    static kv_host::KernelRecord record = {kv_host::signature_of(symbol), kv_host_enter_##symbol, (bound),     \
                                           kv_host::__start_kvshared, kv_host::__stop_kvshared};               \
    return &record;                                                                                            \
  }

#endif  // KV_HOST_KERNEL_RECORD_H
