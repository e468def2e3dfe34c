// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Names that have a header of their own. A program that uses one without its header is
///         told which it is, since compilers quote the line of the declaration.

#include <stagger/collective/grouping/policy.hpp>
#include <stagger/partition/policy.hpp>

// clang-format off
namespace stagger {

/// Whether the headers of these types are included.
namespace detail {
template <class... T>
concept Included = requires { (sizeof(T) + ... + 0); };
}  // namespace detail

// NOLINTBEGIN(bugprone-forward-declaration-namespace): some names stand in several namespaces.
class Checkpoints;  // stagger: include <stagger/train/checkpoint.hpp>
class Observe;      // stagger: include <stagger/train/observe.hpp>
class Profiler;     // stagger: include <stagger/train/profiler.hpp>

namespace optimizer {
struct Lamb;  // stagger: include <stagger/model/lamb.hpp>
struct Muon;  // stagger: include <stagger/model/muon.hpp>
}  // namespace optimizer

namespace schedule {
struct Auto;          // stagger: include <stagger/schedule/auto.hpp>
struct Chimera;       // stagger: include <stagger/schedule/chimera.hpp>
struct DualPipe;      // stagger: include <stagger/schedule/dual_pipe.hpp>
struct DualPipeV;     // stagger: include <stagger/schedule/dual_pipe_v.hpp>
struct Fifo;          // stagger: include <stagger/schedule/fifo.hpp>
struct ForwardOnly;   // stagger: include <stagger/schedule/forward_only.hpp>
struct Hanayo;        // stagger: include <stagger/schedule/hanayo.hpp>
struct Interleaved;   // stagger: include <stagger/schedule/interleaved.hpp>
struct LoopedBfs;     // stagger: include <stagger/schedule/looped_bfs.hpp>
struct Named;         // stagger: include <stagger/schedule/named.hpp>
struct PipeDream;     // stagger: include <stagger/schedule/pipe_dream.hpp>
struct PipeDream2BW;  // stagger: include <stagger/schedule/pipe_dream_2bw.hpp>
struct Seq1F1B;       // stagger: include <stagger/schedule/seq_1f1b.hpp>
struct V1F1B;         // stagger: include <stagger/schedule/v_1f1b.hpp>
struct VHalf;         // stagger: include <stagger/schedule/v_half.hpp>
struct VMin;          // stagger: include <stagger/schedule/v_min.hpp>
struct ZeroBubbleH1;  // stagger: include <stagger/schedule/zero_bubble_h1.hpp>
struct ZeroBubbleH2;  // stagger: include <stagger/schedule/zero_bubble_h2.hpp>
struct ZeroBubbleV;   // stagger: include <stagger/schedule/zero_bubble_v.hpp>
}  // namespace schedule

namespace staleness {
struct Asynchronous;           // stagger: include <stagger/staleness/asynchronous.hpp>
struct LocalSgd;               // stagger: include <stagger/staleness/local_sgd.hpp>
struct RoundRobinSynchronous;  // stagger: include <stagger/staleness/round_robin_synchronous.hpp>
struct StaleSynchronous;       // stagger: include <stagger/staleness/stale_synchronous.hpp>
struct WaveSynchronous;        // stagger: include <stagger/staleness/wave_synchronous.hpp>
}  // namespace staleness

namespace partition {
struct Block;      // stagger: include <stagger/partition/block.hpp>
struct MinMax;     // stagger: include <stagger/partition/min_max.hpp>
struct Named;      // stagger: include <stagger/partition/catalog.hpp>
struct PipeDream;  // stagger: include <stagger/partition/pipe_dream.hpp>
template <PartitionPolicy P> struct LayerSplit;  // stagger: include <stagger/partition/layer_split.hpp>
}  // namespace partition

namespace collective {
template <GroupingPolicy G> struct AllReduce;      // stagger: include <stagger/collective/all_reduce.hpp>
template <GroupingPolicy G> struct GroupedPushes;  // stagger: include <stagger/collective/grouped_pushes.hpp>
class ParameterServer;  // stagger: include <stagger/collective/parameter_server.hpp>
namespace grouping {
struct Bucket;     // stagger: include <stagger/collective/grouping/bucket.hpp>
struct Greedy;     // stagger: include <stagger/collective/grouping/greedy.hpp>
struct Layerwise;  // stagger: include <stagger/collective/grouping/layerwise.hpp>
struct Optimal;    // stagger: include <stagger/collective/grouping/optimal.hpp>
struct Single;     // stagger: include <stagger/collective/grouping/single.hpp>
}  // namespace grouping
}  // namespace collective

namespace host {
class AsioParameterServer;    // stagger: include <stagger/host/asio_parameter_server.hpp>
class RemoteParameterServer;  // stagger: include <stagger/host/asio_parameter_server.hpp>
}  // namespace host

namespace mpi {
class ParameterServer;  // stagger: include <stagger/mpi/parameter_server.hpp>
struct Processes;       // stagger: include <stagger/mpi/processes.hpp>
class Session;          // stagger: include <stagger/mpi/session.hpp>
}  // namespace mpi

namespace cuda {
struct Gpus;  // stagger: include <stagger/cuda/gpus.hpp>
}  // namespace cuda

namespace nccl {
struct Gpus;  // stagger: include <stagger/nccl/gpus.hpp>
}  // namespace nccl

namespace report {
class Progress;  // stagger: include <stagger/report/progress.hpp>
}  // namespace report

// NOLINTEND(bugprone-forward-declaration-namespace)
}  // namespace stagger
// clang-format on
