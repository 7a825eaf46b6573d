// Shares the work of launches among threads: grain sizes, scratch memory, and loops over rows.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "cpu/dispatch/table.h"
#include "cpu/threads/parallel.h"
#include "cpu/threads/work_division.h"

namespace fusedops {

// Below this number of elements a second thread costs more time than it saves.
inline constexpr int64_t kGrainElements = 32768;

// Results bypass the cache (non-temporal stores) if a launch moves more bytes than this, because in
// the cache they would only evict data that is read next. With 32 MiB of last-level cache,
// this is 20-40 % faster at 24 MiB and no faster at 16 MiB.
inline constexpr int64_t kStreamingBytes = int64_t(20) << 20;

// Whether a result bypasses the cache, in a launch that reads or writes all `elements` elements of
// these tensors, except of those whose data is null. A result in place of another tensor does so
// from twice as much memory on: its cache lines have been read anyway, and stores that bypass the
// cache evict them. In place, a softmax of 12 MiB and the product that reads it take 7 % less time
// in the cache, 3 % less at 24 MiB, and a causal one 3 % more at 48 MiB.
template <class Result, class... Tensors>
bool is_streaming(int64_t elements, const Result& result, const Tensors&... others) {
  const auto is_result = [&](const auto& tensor) {
    return tensor.data != nullptr && tensor.data == result.data;
  };
  const auto bytes_of = [](const auto& tensor) -> int64_t {
    return tensor.data == nullptr ? 0 : size_of(tensor.dtype);
  };
  const int64_t bytes = (bytes_of(result) + ... + (is_result(others) ? 0 : bytes_of(others)));
  const bool in_place = (is_result(others) || ...);
  return elements * bytes > (in_place ? 2 : 1) * kStreamingBytes;
}

// Holds scratch memory for a parallel_for(), an equal share for each thread that may run its body.
// It is allocated before any thread writes a result, so that a call that runs out of memory leaves
// its tensors unchanged. The calling thread keeps shares of up to kCachedBytes for later calls;
// larger ones are freed with the Scratch, so that a row of 10^9 elements does not retain memory.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : threads_(thread_count()), bytes_each_(aligned(bytes)) {
    thread_local Cached cached;
    if (bytes_each_ > kCachedBytes) {
      uncached_ = allocate(threads_ * bytes_each_);
    } else if (bytes > 0 && cached.threads < threads_) {
      cached.memory = allocate(threads_ * kCachedBytes);
      cached.threads = threads_;
    }
    if (!uncached_) bytes_each_ = bytes > 0 ? kCachedBytes : 0;
    memory_ = static_cast<char*>(uncached_ ? uncached_.get() : cached.memory.get());
  }

  static int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

  int64_t threads() const { return threads_; }

  // Returns the calling thread's share. Work that was not divided may run on a thread whose index
  // is threads_ or more. Only one share is in use then, the first.
  void* of_thread() const {
    const int64_t index = thread_index();
    return memory_ + (index < threads_ ? index : 0) * bytes_each_;
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<void, Free>;
  struct Cached {
    Memory memory;
    int64_t threads = 0;
  };
#ifdef __SANITIZE_ADDRESS__
  static constexpr int64_t kCachedBytes = 0;  // so that an access beyond the wanted bytes is seen
#else
  static constexpr int64_t kCachedBytes = int64_t(1) << 20;
#endif
  static constexpr int64_t kAlignment = 64;

  static Memory allocate(int64_t bytes) {
    void* memory = std::aligned_alloc(kAlignment, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return Memory(memory);
  }

  int64_t threads_, bytes_each_;
  Memory uncached_;
  char* memory_;
};

// Calls body(range, scratch) for ranges that cover [0, count), on no more threads than the scratch
// memory was divided among.
template <class Body>
void for_range(int64_t count, int64_t grain, const Scratch& scratch, Body body) {
  const int64_t least = ceil_div(count, scratch.threads());
  parallel_for(count, std::max(grain, least), [&](int64_t begin, int64_t end) {
    body(RowRange{begin, end}, scratch.of_thread());
  });
}

// Calls body(range of rows, scratch) for ranges that cover all rows.
template <class Body>
void for_rows(int64_t rows, int64_t cols, int64_t scratch_bytes, Body body) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(cols, 1));
  for_range(rows, grain, Scratch(scratch_bytes), body);
}

// Calls body(columns, scratch) for ranges of whole segments of long rows. body computes the columns
// of `rows` rows, so the number of threads grows with cols * rows.
template <class Body>
void for_columns(int64_t cols, int64_t rows, const Scratch& scratch, Body body) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / kRowSegment / rows);
  for_range(row_segments(cols), grain, scratch, [&](RowRange segments, void* thread_scratch) {
    const int64_t end = std::min(segments.end * kRowSegment, cols);
    body(RowRange{segments.begin * kRowSegment, end}, thread_scratch);
  });
}

// Calls body(rows, columns) for parts of a tensor whose elements do not depend on each other: for
// ranges of whole rows or, where rows are long, for ranges of the segments of one row.
template <class Body>
void for_elements(int64_t rows, int64_t cols, Body body) {
  if (!is_long_row(cols)) {
    return for_rows(rows, cols, /*scratch_bytes=*/0, [&](RowRange range, void*) {
      body(range, RowRange{0, cols});
    });
  }
  const int64_t segments = row_segments(cols);
  const auto of_segments = [&](RowRange range, void*) {
    for (int64_t at = range.begin; at < range.end;) {
      const int64_t row = at / segments, first = row * segments;
      const int64_t end = std::min(range.end, first + segments);
      body(
          RowRange{row, row + 1},
          RowRange{(at - first) * kRowSegment, std::min((end - first) * kRowSegment, cols)});
      at = end;
    }
  };
  for_range(rows * segments, kGrainElements / kRowSegment, Scratch(0), of_segments);
}

// Calls reduce(row, columns, partials, scratch) for long rows, and write(row, columns, partials,
// scratch) once all columns of a row are reduced. Each thread first computes whole rows, so that it
// finds in its cache what it has read; threads share each of the remaining rows.
template <class Reduce, class Write>
void for_long_rows(
    int64_t rows, int64_t cols, int64_t partial_bytes, int64_t scratch_bytes, Reduce reduce,
    Write write) {
  partial_bytes = Scratch::aligned(partial_bytes);
  const Scratch memory(partial_bytes + scratch_bytes);
  const auto scratch_after = [&](void* partials) {
    return static_cast<char*>(partials) + partial_bytes;
  };
  const int64_t unshared_rows = rows - rows % memory.threads();
  for_range(unshared_rows, /*grain=*/1, memory, [&](RowRange range, void* partials) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      reduce(row, RowRange{0, cols}, partials, scratch_after(partials));
      write(row, RowRange{0, cols}, partials, scratch_after(partials));
    }
  });
  void* const partials = memory.of_thread();
  const auto shared = [&](int64_t row, auto step) {
    for_columns(cols, /*rows=*/1, memory, [&](RowRange segments, void* thread_scratch) {
      step(row, segments, partials, scratch_after(thread_scratch));
    });
  };
  for (int64_t row = unshared_rows; row < rows; ++row) {
    shared(row, reduce);
    shared(row, write);
  }
}

// Calls body(args, range, scratch) for the rows of every tensor of a stack.
template <class Stack, class Body>
void for_stack(const Stack& stack, int64_t scratch_bytes, Body body) {
  const int64_t rows = stack.each.rows, count = stack.count * rows;
  for_rows(count, stack.each.cols, scratch_bytes, [&](RowRange all, void* scratch) {
    for (int64_t row = all.begin; row < all.end;) {
      const int64_t tensor = row / rows, first = tensor * rows;
      const int64_t end = std::min(all.end, first + rows);
      body(stack[static_cast<int32_t>(tensor)], RowRange{row - first, end - first}, scratch);
      row = end;
    }
  });
}

}  // namespace fusedops
