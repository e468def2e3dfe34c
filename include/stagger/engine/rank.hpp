// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One rank: where its stages' values lie, and how it carries out one instruction.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <stagger/engine/layer.hpp>
#include <stagger/engine/parameters.hpp>
#include <stagger/engine/program.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::detail {

/// An array of objects whose type is not known here, by address.
struct Places {
  std::byte* first = nullptr;
  std::size_t stride = 0;
  [[nodiscard]] void* operator[](std::size_t i) const noexcept { return first + i * stride; }
};

/// A loss, its type erased.
struct LossOps {
  double (*value)(void const* loss, Context&, void const* y, void const* target) = nullptr;
  double (*value_and_gradient)(void const* loss, Context&, void const* y, void const* target, double scale,
                               void* dy) = nullptr;
};

/// What a caller hands over for one iteration. It must stay until the iteration is done.
struct StepArguments {
  Places inputs;           // [microbatches]
  Places targets;          // [microbatches]; none where only outputs are wanted
  Places outputs;          // [microbatches]; where the last stage's results go, if the caller wants them
  void const* loss = nullptr;
  LossOps loss_ops;
  double scale = 1;        // 1 / terms of the whole minibatch
  double* losses = nullptr;  // [microbatches] sum over the terms of each
};

/// One layer on a rank.
struct LayerRun {
  void* object = nullptr;
  LayerOps const* ops = nullptr;
  ParameterView const* parameters = nullptr;
  int number = 0;
  Places y;      // by kept; of a stage's last layer: by y, in the next stage's x (by kept at the last stage)
  Places saved;  // by kept
  Places dy;     // by inner; of a stage's last layer: by dy
};

/// One stage on a rank.
struct StageRun {
  std::vector<LayerRun> layers;
  Places x;      // by x; unused at the first stage
  Places dx;     // by dx, in the dy of the stage before; at the first stage one object that nobody reads
  void* repeated_output = nullptr;  // where the last layer's output goes when F is repeated: its reader has it already
  bool first = false;
  bool last = false;
};

/// One rank of the run. Written by the thread that drives it; `next` may be read by others for diagnosis.
struct alignas(64) RankState {
  std::atomic<Instruction const*> next{nullptr};
  Instruction const* end = nullptr;
  Wait const* wait = nullptr;  // first wait of `next`
  Wait blocked_on;
  bool executed = false;       // `next` has run, its signals are still to be given (timed back ends)
  bool record = false;
  int number = 0;
  int in_flight = 0;
  int peak_in_flight = 0;
  StageRun* stages = nullptr;             // [stages of the model]
  StepArguments const* arguments = nullptr;
  Instruction const* begin = nullptr;
  Context context;
  std::vector<schedule::Span> spans;      // of the last recorded iteration
};

/// F. In evaluation the last stage computes the loss as well.
inline void run_forward(RankState& rank, StageRun const& stage, Instruction const& in) {
  std::size_t const m = in.microbatch;
  StepArguments const& arguments = *rank.arguments;
  void const* x = stage.first ? arguments.inputs[m] : stage.x[in.x];
  LayerRun const* const final_layer = &stage.layers.back();
  for (LayerRun const& layer : stage.layers) {
    void* y = layer.y[&layer != final_layer || stage.last ? in.kept : in.y];
    if (&layer == final_layer && stage.last && arguments.outputs.first != nullptr) y = arguments.outputs[m];
    rank.context.begin_action(layer.parameters, layer.number, static_cast<int>(m));
    layer.ops->forward(layer.object, rank.context, x, y, layer.saved[in.kept]);
    x = y;
  }
  if (stage.last && !rank.context.training() && arguments.losses != nullptr)
    arguments.losses[m] = arguments.loss_ops.value(arguments.loss, rank.context, x, arguments.targets[m]);
}

/// F once more, for what backward needs of it.
inline void run_recompute(RankState& rank, StageRun const& stage, Instruction const& in) {
  std::size_t const m = in.microbatch;
  void const* x = stage.first ? rank.arguments->inputs[m] : stage.x[in.x];
  LayerRun const* const final_layer = &stage.layers.back();
  for (LayerRun const& layer : stage.layers) {
    void* const y = &layer != final_layer || stage.last ? layer.y[in.kept] : stage.repeated_output;
    rank.context.begin_action(layer.parameters, layer.number, static_cast<int>(m));
    layer.ops->forward(layer.object, rank.context, x, y, layer.saved[in.kept]);
    x = y;
  }
}

/// B, I or W, layer by layer from the last. A layer whose backward does not split does all of it in I.
inline void run_backward(RankState& rank, StageRun const& stage, Instruction const& in) {
  std::size_t const m = in.microbatch;
  StepArguments const& arguments = *rank.arguments;
  bool const input = in.op != Op::backward_weight;
  bool const weight = in.op != Op::backward_input;
  std::size_t const count = stage.layers.size();
  if (input && stage.last) {
    LayerRun const& layer = stage.layers.back();
    rank.context.begin_action(nullptr, layer.number, static_cast<int>(m));
    arguments.losses[m] = arguments.loss_ops.value_and_gradient(
        arguments.loss, rank.context, layer.y[in.kept], arguments.targets[m], arguments.scale, layer.dy[in.dy]);
  }
  for (std::size_t l = count; l-- > 0;) {
    LayerRun const& layer = stage.layers[l];
    LayerOps const& ops = *layer.ops;
    void const* const x = l > 0                ? stage.layers[l - 1].y[in.kept]
                          : stage.first        ? arguments.inputs[m]
                                               : stage.x[in.x];
    void const* const dy = layer.dy[l + 1 == count ? in.dy : in.inner];
    void* const dx = l > 0 ? stage.layers[l - 1].dy[in.inner] : stage.dx[stage.first ? 0U : in.dx];
    void* const saved = layer.saved[in.kept];
    rank.context.begin_action(layer.parameters, layer.number, static_cast<int>(m));
    bool const whole = ops.backward != nullptr && (weight == input || ops.backward_input == nullptr);
    if (whole) {
      if (input) ops.backward(layer.object, rank.context, x, dy, dx, saved);
      continue;
    }
    if (input && ops.backward_input != nullptr) ops.backward_input(layer.object, rank.context, x, dy, dx, saved);
    if (weight && ops.backward_weight != nullptr) {
      if (input) rank.context.begin_action(layer.parameters, layer.number, static_cast<int>(m));
      ops.backward_weight(layer.object, rank.context, x, dy, saved);
    }
  }
}

/// Carries out a compute instruction.
inline void run_compute(RankState& rank, Instruction const& in) {
  StageRun const& stage = rank.stages[in.stage];
  switch (in.op) {
    case Op::forward: run_forward(rank, stage, in); break;
    case Op::recompute: run_recompute(rank, stage, in); break;
    default: run_backward(rank, stage, in); break;
  }
}

}  // namespace stagger::detail
