// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The small model for several GPUs, with values in tensors of device memory.

#include <utility>
#include <vector>

#include <stagger/cuda/gpus.hpp>

#include "cuda/enqueued_model.hpp"

namespace gpus_model {

using namespace enqueued_model;

using Values = sg::cuda::Tensor<float>;  // [rows][width]
template <class L> using OnGpu = OnDevice<L, InTensors>;
using LossOnGpu = LossOnDevice<InTensors>;

inline auto layers_on_gpus() {
  return sg::Sequential{OnGpu<Embedding>{}, OnGpu<Dense>{}, OnGpu<Curve>{},        OnGpu<Squash>{},
                        OnGpu<Dropout>{},   OnGpu<Norm>{},  OnGpu<Dense>{Dense{7}}};
}

inline sg::cuda::Gpus on_gpus(std::vector<int> devices) {
  sg::cuda::Gpus gpus;
  gpus.devices = std::move(devices);
  gpus.kernels = &sg::cuda::parameter_kernels;
  return gpus;
}

/// The whole model over GPUs, cut, with a schedule. Its rule is the host's.
template <class Gpus, class Rule>
auto over(Gpus gpus, Rule rule, std::vector<int> cuts, Made schedule, sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{layers_on_gpus()}.with(
      sg::partition::Cuts{std::move(cuts)}, std::move(schedule), LossOnGpu{},
      sg::cuda::Enqueued<Rule, Launch>{rule}, std::move(gpus), options);
}

}  // namespace gpus_model
