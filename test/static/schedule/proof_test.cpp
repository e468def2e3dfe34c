// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/proof/proof.hpp>

#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/dual_pipe_v.hpp>
#include <stagger/schedule/forward_only.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/hanayo.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/looped_bfs.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/proof/reductions.hpp>
#include <stagger/schedule/seq_1f1b.hpp>
#include <stagger/schedule/v_1f1b.hpp>
#include <stagger/schedule/v_half.hpp>
#include <stagger/schedule/v_min.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/schedule/zero_bubble_h2.hpp>
#include <stagger/schedule/zero_bubble_v.hpp>

using namespace stagger;
using namespace stagger::schedule;

// The whole table at once, and in parts.
static_assert(accepted<verify(OneFOneB{}, Shape{8, 32})>);
static_assert(accepted<proof<OneFOneB{}, Shape{32, 128}>>);

static_assert(accepted<proof<GPipe{}, Shape{4, 6}>>);
static_assert(accepted<proof<OneFOneB{.warmup = Warmup::deep}, Shape{4, 6}>>);
static_assert(accepted<proof<Interleaved{3}, Shape{2, 4, 3}>>);
static_assert(accepted<proof<LoopedBfs{}, Shape{2, 4, 2}>>);
static_assert(accepted<proof<ZeroBubbleH1{}, Shape{4, 8}, 4>>);
static_assert(accepted<proof<ZeroBubbleH2{}, Shape{4, 8}>>);
static_assert(accepted<proof<ZeroBubbleV{}, Shape{3, 5, 2}, 6>>);
static_assert(accepted<proof<VMin{}, Shape{3, 5, 2}, 4>>);
static_assert(accepted<proof<VHalf{}, Shape{3, 5, 2}, 4>>);
static_assert(accepted<proof<V1F1B{}, Shape{3, 5, 2}, 6>>);
static_assert(accepted<proof<DualPipe{}, Shape{4, 8}, 5>>);
static_assert(accepted<proof<DualPipeV{}, Shape{3, 6, 2}, 7>>);
static_assert(accepted<proof<Chimera{}, Shape{4, 4}>>);
static_assert(accepted<proof<Hanayo{}, Shape{3, 6, 2}>>);
static_assert(accepted<proof<Seq1F1B{3}, Shape{2, 4}>>);
static_assert(accepted<proof<ForwardOnly{2, Mapping::zigzag}, Shape{3, 4, 2}>>);

namespace {

/// A schedule of a user, with a slip that can be chosen.
struct Own {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  int slip = 0;
  [[nodiscard]] constexpr int chunks() const { return 1; }
  [[nodiscard]] constexpr Table table(Shape shape) const {
    Table t{.stages = shape.ranks, .microbatches = shape.microbatches};
    for (int r = 0; r < shape.ranks; ++r) {
      t.begin_row();
      for (int m = 0; m < shape.microbatches; ++m) {
        int const at = slip == 3 && r == 1 ? shape.microbatches - 1 - m : m;
        t.add({.kind = Kind::forward, .stage = r, .microbatch = at});
        if (slip == 1 || r + 1 == shape.ranks)
          t.add({.kind = Kind::backward, .stage = r, .microbatch = at});
      }
      int const backwards = shape.microbatches - (slip == 4 && r == 0 ? 1 : 0);
      for (int m = 0; slip != 1 && r + 1 < shape.ranks && m < backwards; ++m) {
        t.add({.kind = Kind::backward,
               .stage = r,
               .microbatch = slip == 2 && r == 0 && m == 2 ? 1 : m});
      }
    }
    return t;
  }
};

constexpr Shape shape{3, 4};
static_assert(!verify(Own{0}, shape) && !proof<Own{0}, shape>);
// Each rank waits for a gradient before it goes on: one microbatch at a time is slow, but it ends.
static_assert(!verify(Own{1}, shape) && !proof<Own{1}, shape>);
static_assert(verify(Own{2}, shape).kind == FaultKind::duplicate &&
              proof<Own{2}, shape>.kind == FaultKind::duplicate);
static_assert(proof<Own{2}, shape>.rank == 0 && proof<Own{2}, shape>.index == 6);
static_assert(verify(Own{3}, shape).kind == FaultKind::message_order);
static_assert(proof<Own{3}, shape>.kind == FaultKind::deadlock ||
              proof<Own{3}, shape>.kind == FaultKind::message_order);
static_assert(proof<Own{0}, shape, 3>.kind == FaultKind::memory);
static_assert(proof<Own{4}, shape> ==
              Fault{.kind = FaultKind::missing, .action = verify(Own{4}, shape).action});

/// The first rank wants a gradient that only its second forward would bring about.
struct Stuck : Own {
  [[nodiscard]] constexpr Table table(Shape) const {
    Table t{.stages = 2, .microbatches = 2};
    t.begin_row();
    for (Kind const kind : {Kind::forward, Kind::backward})
      t.add({.kind = kind, .stage = 0, .microbatch = 0});
    for (Kind const kind : {Kind::forward, Kind::backward})
      t.add({.kind = kind, .stage = 0, .microbatch = 1});
    t.begin_row();
    for (Kind const kind : {Kind::forward, Kind::backward}) {
      for (int m = 0; m < 2; ++m) t.add({.kind = kind, .stage = 1, .microbatch = m});
    }
    return t;
  }
};
constexpr Fault stuck{.kind = FaultKind::deadlock,
                      .rank = 0,
                      .index = 1,
                      .action = {.kind = Kind::backward, .stage = 0, .microbatch = 0},
                      .waits = 2,
                      .cycle = {{{.rank = 0,
                                  .index = 1,
                                  .action = {.kind = Kind::backward, .stage = 0},
                                  .needs = {.kind = Kind::backward, .stage = 1}},
                                 {.rank = 1,
                                  .index = 1,
                                  .action = {.kind = Kind::forward, .stage = 1, .microbatch = 1},
                                  .needs = {.kind = Kind::forward, .stage = 0, .microbatch = 1}}}}};
static_assert(verify(Stuck{}, Shape{2, 2}) == stuck);
static_assert(proof<Stuck{}, Shape{2, 2}> == stuck);

/// Another schedule with its gradients added up; with `slip`, one REDUCE_GRAD is out of place.
template <auto Policy> struct Reduced {
  using policy_tag = ScheduleTag;
  static constexpr bool flushes = true;
  int slip = 0;
  [[nodiscard]] constexpr int chunks() const { return Policy.chunks(); }
  [[nodiscard]] constexpr Table table(Shape s) const {
    Table const whole = add_reductions(Policy.table(s));
    Table t{.stages = whole.stages, .microbatches = whole.microbatches};
    for (int r = 0; r < whole.ranks(); ++r) {
      auto const row = whole.row(r);
      std::size_t const n = row.size();
      t.begin_row();
      for (std::size_t i = 0; i < n; ++i) {
        std::size_t from = i;
        if (r == 0 && slip == 1 && i + 2 >= n) from = 2 * n - 3 - i;  // before the last backward
        if (r == 0 && slip == 3 && i + 1 == n) continue;              // on one of two holders only
        if (slip == 6 && is_backward(row[from].kind)) continue;       // nothing is added up
        t.add(row[from]);
      }
      if (r == 0 && slip == 2) t.add(row[n - 1]);
      if (r == 0 && slip == 5) t.add({.kind = Kind::reduce_gradient, .stage = 1});
    }
    return t;
  }
};
template <auto Policy, int Slip> constexpr bool both(Shape s, Fault const& proven, FaultKind kind) {
  Fault const whole = verify(Reduced<Policy>{Slip}, s);
  return whole.kind == kind && proven.kind == kind;
}
static_assert(both<OneFOneB{}, 0>(shape, proof<Reduced<OneFOneB{}>{}, shape>, FaultKind::none));
static_assert(both<OneFOneB{}, 1>(shape, proof<Reduced<OneFOneB{}>{1}, shape>, FaultKind::order));
static_assert(both<OneFOneB{}, 2>(shape, proof<Reduced<OneFOneB{}>{2}, shape>,
                                  FaultKind::duplicate));
static_assert(both<OneFOneB{}, 5>(shape, proof<Reduced<OneFOneB{}>{5}, shape>,
                                  FaultKind::placement));
static_assert(both<OneFOneB{}, 6>(shape, proof<Reduced<OneFOneB{}>{6}, shape>, FaultKind::missing));
static_assert(accepted<proof<Reduced<ZeroBubbleV{}>{}, Shape{3, 5, 2}>>);
static_assert(accepted<proof<Reduced<Chimera{}>{}, Shape{4, 4}>>);
static_assert(accepted<proof<Reduced<DualPipe{}>{}, Shape{4, 8}>>);
// Holders of a stage meet: a reduction that one of them leaves out holds the other up.
static_assert(proof<Reduced<Chimera{}>{3}, Shape{4, 4}>.kind == FaultKind::missing &&
              verify(Reduced<Chimera{}>{3}, Shape{4, 4}).kind == FaultKind::missing);

}  // namespace
