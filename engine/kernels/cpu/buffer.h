// Memory for weights, KV cache and scratch: page aligned, zero filled, in huge pages where the system grants them
// (a decode step walks hundreds of MB once; with 4 KiB pages the TLB becomes a second memory bound).
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

namespace wb {

// Back [begin, begin + bytes), a part of a Buffer, with memory; what is there stays as it is. A hint where the system cannot.
inline void populate([[maybe_unused]] char* begin, [[maybe_unused]] size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  constexpr size_t kPage = 4096;
  const size_t first = reinterpret_cast<size_t>(begin) / kPage * kPage, last = reinterpret_cast<size_t>(begin) + bytes;
  (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_POPULATE_WRITE);
#endif
}

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) {
    if (bytes == 0) return;
    capacity_ = bytes;
    constexpr size_t kHuge = size_t{2} << 20;
    size_ = bytes >= kHuge ? (bytes + kHuge - 1) / kHuge * kHuge + kHuge : bytes;
    void* p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = p;
    data_ = static_cast<char*>(p);
    if (bytes >= kHuge) {
      data_ = reinterpret_cast<char*>((reinterpret_cast<size_t>(p) + kHuge - 1) / kHuge * kHuge);
#ifdef MADV_HUGEPAGE
      (void)madvise(data_, size_ - kHuge, MADV_HUGEPAGE);  // a hint: without it the buffer works, only slower
#endif
    }
  }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (base_) munmap(base_, size_);
  }

  template <class T>
  T* as() const { return reinterpret_cast<T*>(data_); }
  explicit operator bool() const { return data_ != nullptr; }

  // Make room for `bytes`; contents are lost (and zero) when it grows.
  void reserve(size_t bytes) {
    if (bytes > capacity_) *this = Buffer(bytes + bytes / 2);
  }

  // Have the system back the whole buffer with memory now, and not page by page when it is first used.
  void populate() const {
    if (data_) wb::populate(data_, capacity_);
  }

 private:
  void* base_ = nullptr;
  char* data_ = nullptr;
  size_t size_ = 0;  // mapped
  size_t capacity_ = 0;  // usable from data_
};

}  // namespace wb
