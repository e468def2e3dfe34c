// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   oneTBB's parallel_pipeline, which stagger is compared with, with serial filters as
/// stages.

#include <tbb/global_control.h>
#include <tbb/parallel_pipeline.h>
#include <tbb/task_arena.h>

namespace bench {

/// A chain of filters on a number of threads.
class TbbPipeline {
 public:
  explicit TbbPipeline(int threads)
      : limit_(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads)),
        arena_(threads) {}

  /// Sends `items` numbers through `filters` >= 2 serial filters.
  /// @param tokens  largest number of items in flight
  /// @param work    (int) -> int, what each filter does
  template <class Work> void run(int filters, int items, int tokens, Work work) {
    arena_.execute([&] {
      int next = 0;
      auto const serial = tbb::filter_mode::serial_in_order;
      auto chain =
          tbb::make_filter<void, int>(serial, [&next, items, work](tbb::flow_control& control) {
            if (next == items) {
              control.stop();
              return 0;
            }
            return work(next++);
          });
      for (int f = 2; f < filters; ++f) chain = chain & tbb::make_filter<int, int>(serial, work);
      tbb::parallel_pipeline(
          static_cast<std::size_t>(tokens),
          chain & tbb::make_filter<int, void>(serial, [work](int x) { work(x); }));
    });
  }

 private:
  tbb::global_control limit_;
  tbb::task_arena arena_;
};

}  // namespace bench
