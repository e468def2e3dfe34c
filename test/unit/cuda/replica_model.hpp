// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The model that is cut by rows, with all values in tensors of device memory.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/engine/replicas.hpp>

#include "cuda/enqueued_model.hpp"
#include "engine/row_oracle.hpp"

namespace replica_model {

namespace grouping = stagger::collective::grouping;
using namespace enqueued_model;

using Values = sg::cuda::Tensor<float>;        // [rows][width]
using Words = sg::cuda::Tensor<std::int32_t>;  // [rows][2]
template <class L> using OnGpu = OnDevice<L, AllInTensors>;
using LossThere = LossOnDevice<AllInTensors>;

using BatchThere = sg::Batch<Words, Words>;

/// The same minibatch in memory of the current GPU.
inline Words upload(Tokens const& from) {
  Words to({from.extent(0), from.extent(1)});
  for (std::size_t i = 0; i < from.size(); ++i) to.data()[i] = from[i];
  return to;
}
inline BatchThere upload(Batch const& from) {
  BatchThere to;
  for (auto const& x : from.inputs) to.inputs.push_back(upload(x));
  for (auto const& t : from.targets) to.targets.push_back(upload(t));
  return to;
}

inline auto layers_there() {
  return sg::Sequential{
      OnGpu<Embedding>{},     OnGpu<Dense>{}, OnGpu<Curve>{},        OnGpu<row_model::RowDropout>{},
      OnGpu<Dense>{Dense{5}}, OnGpu<Curve>{}, OnGpu<Dense>{Dense{7}}};
}

/// The whole model on GPUs, cut, with a schedule and replicas. Its rule is the host's.
template <class Device, class AllReduce>
auto there(Device device, AllReduce policy, std::vector<int> cuts, Made schedule,
           sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{layers_there()}.with(
      sg::partition::Cuts{std::move(cuts)}, std::move(schedule), LossThere{},
      sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, std::move(device), policy,
      options);
}

}  // namespace replica_model
