// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The features of pipelines that the rules of core/combinations.hpp speak of.

#include <stagger/core/requirements.hpp>

#include <cstdint>

namespace stagger::detail {

/// The features that rules speak of: FEATURE(name, "words").
#define STAGGER_FEATURES(FEATURE)                                                          \
  /* schedules and staleness models */                                                     \
  FEATURE(no_flush, "a schedule without a flush")                                          \
  FEATURE(two_owners, "a schedule that gives a stage several owners (bidirectional)")      \
  FEATURE(forward_only, "a schedule without backward actions")                             \
  FEATURE(moves_stages, "a stage that moves to another process")                           \
  FEATURE(synchronous, "a synchronous staleness model")                                    \
  FEATURE(asynchronous, "an asynchronous staleness model")                                 \
  FEATURE(workers_model, "a staleness model of several workers")                           \
  FEATURE(averages, "a staleness model that pushes weights (LocalSgd)")                    \
  FEATURE(late, "a staleness model with late layers (OverlappedSynchronous)")              \
  FEATURE(pushes_no_changes, "a staleness model that pushes gradients or weights")         \
  FEATURE(adds_in_turn, "a staleness model that adds in turn")                             \
  FEATURE(keeps_changes, "a staleness model by which a worker keeps what it pushed")       \
  /* stages and ranks */                                                                   \
  FEATURE(hand_cut, "stages that are cut by hand")                                         \
  FEATURE(partitioner, "a partitioner")                                                    \
  FEATURE(own_weights, "layers that keep their own weights")                               \
  FEATURE(layer_split, "partition::LayerSplit")                                            \
  FEATURE(each_pass, "layers that are updated in each pass")                               \
  FEATURE(placement, "a placement")                                                        \
  FEATURE(replicas, "Options::replicas")                                                   \
  FEATURE(all_replicated, "several replicas of every position")                            \
  /* collectives and servers */                                                            \
  FEATURE(shards, "AllReduce::shard_optimizer")                                            \
  FEATURE(by_library, "collective::By::library")                                           \
  FEATURE(server, "a parameter server")                                                    \
  FEATURE(reaches_processes, "a server that each process of a worker reaches")             \
  FEATURE(remote, "a server in another process")                                           \
  FEATURE(grouped_pushes, "collective::GroupedPushes")                                     \
  FEATURE(durable, "ServerOptions::durable")                                               \
  FEATURE(logs, "ServerOptions::log")                                                      \
  FEATURE(goes_on, "OnFailure::go_on")                                                     \
  /* what devices can do */                                                                \
  FEATURE(one_device, "Pipeline::on_one_device")                                           \
  FEATURE(obeys_placement, "a device that obeys placements")                               \
  FEATURE(enqueues, "a device that runs kernels")                                          \
  FEATURE(own_memory, "a device with memory of its own")                                   \
  FEATURE(shards_states, "a device whose replicas have a copy of the state each")          \
  FEATURE(library_sums, "a device with sums by MPI or NCCL")                               \
  FEATURE(signalled, "a device that can be signalled from outside")                        \
  FEATURE(shares_layers, "a device whose ranks can share layers")                          \
  FEATURE(own_stages, "a device of processes that hold their own stages (mpi::Processes)") \
  FEATURE(apart, "GPUs of several processes (nccl::Gpus)")                                 \
  FEATURE(virtual_time, "a device in virtual time")                                        \
  FEATURE(captures, "a device with graphs")                                                \
  FEATURE(runs_ahead, "a device that runs ahead of the host")                              \
  FEATURE(adds_by_kernel, "a kernel that adds gradients")                                  \
  FEATURE(norm_by_kernel, "kernels that sum up squares and find the scale")                \
  FEATURE(finds_by_kernel, "kernels that look for gradients that are not finite")          \
  FEATURE(begins_by_kernel, "a kernel that numbers steps")                                 \
  /* optimizers, options and calls */                                                      \
  FEATURE(whole_parameters, "an optimizer that is not element_wise")                       \
  FEATURE(kernel, "an optimizer whose update is a kernel")                                 \
  FEATURE(asks_scale, "an optimizer's kernel that asks whether it may update")             \
  FEATURE(suits_server, "an optimizer with what a worker on a GPU needs of it")            \
  FEATURE(clips, "Options::clip_norm")                                                     \
  FEATURE(looks, "Options::non_finite other than NonFinite::ignore")                       \
  FEATURE(skips, "NonFinite::skip")                                                        \
  FEATURE(recomputes, "Options::recompute")                                                \
  FEATURE(checks_recompute, "Options::check_recompute")                                    \
  FEATURE(observes, "Observe")                                                             \
  FEATURE(records, "Options::record")                                                      \
  FEATURE(shapes_change, "Gpus::shapes_change")                                            \
  FEATURE(trains, "training")                                                              \
  FEATURE(predicts, "predictions")                                                         \
  FEATURE(enqueue, "enqueue(train.step(batch))")                                           \
  FEATURE(capture, "Trainer::capture")                                                     \
  FEATURE(restores, "Checkpoints::restore")                                                \
  FEATURE(profiles, "train::Profiler")

/// A set of features.
struct Features {
  std::uint64_t first = 0;  // features 0 to 63
  std::uint64_t more = 0;   // from 64

  [[nodiscard]] constexpr Features operator|(Features other) const noexcept {
    return {first | other.first, more | other.more};
  }
  /// These features, and others if `holds`.
  [[nodiscard]] constexpr Features with(Features others, bool holds) const noexcept {
    return holds ? *this | others : *this;
  }
  [[nodiscard]] constexpr Features without(Features others) const noexcept {
    return {first & ~others.first, more & ~others.more};
  }
  [[nodiscard]] constexpr bool has(Features all) const noexcept {
    return all.without(*this) == Features{};
  }
  [[nodiscard]] constexpr bool has_any(Features some) const noexcept {
    return some.without(*this) != some;
  }
  [[nodiscard]] constexpr bool operator==(Features const&) const noexcept = default;

  [[nodiscard]] static constexpr Features only(unsigned number) noexcept {
    return number < 64 ? Features{std::uint64_t{1} << number, 0}
                       : Features{0, std::uint64_t{1} << (number - 64)};
  }
};

namespace feature {
enum class At : unsigned {
#define STAGGER_FEATURE(name, words) name,
  STAGGER_FEATURES(STAGGER_FEATURE)
#undef STAGGER_FEATURE
      count,
};
static_assert(static_cast<unsigned>(At::count) <= 128);
inline constexpr Features none{};
#define STAGGER_FEATURE(name, words) \
  inline constexpr Features name = Features::only(static_cast<unsigned>(At::name));
STAGGER_FEATURES(STAGGER_FEATURE)
#undef STAGGER_FEATURE

/// What the library's devices can do: what `device_features` makes of their traits.
inline constexpr Features of_threads = obeys_placement | signalled | shares_layers;
inline constexpr Features of_virtual_clock = signalled | shares_layers | virtual_time;
inline constexpr Features of_gpus = obeys_placement | enqueues | own_memory | captures |
                                    runs_ahead | shards_states | signalled | shares_layers;
inline constexpr Features of_gpus_apart =
    obeys_placement | enqueues | own_memory | captures | runs_ahead | shards_states | library_sums;
inline constexpr Features of_processes =
    obeys_placement | shards_states | library_sums | signalled | shares_layers | own_stages;
}  // namespace feature

}  // namespace stagger::detail
