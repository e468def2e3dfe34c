// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One rank: the addresses of its stages' values, and how it carries out one instruction.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/request.hpp>
#include <stagger/engine/layer.hpp>
#include <stagger/model/context.hpp>
#include <stagger/program/program.hpp>
#include <stagger/schedule/timeline.hpp>

namespace stagger::detail {

struct LayerRun {
  void* object = nullptr;
  LayerOps const* ops = nullptr;
  ParameterView const* parameters = nullptr;  // [versions][parameter_count]
  std::size_t parameter_count = 0;
  int number = 0;
  // Indexed by Instruction::kept; of a stage's last layer by Instruction::y, in the next stage's x,
  // but by kept at the last stage.
  Places y;
  Places saved;  // indexed by Instruction::kept
  Places dy;     // indexed by Instruction::inner; of a stage's last layer by Instruction::dy
  [[nodiscard]] LayerAction action(Instruction const& in) const noexcept {
    return {object, ops, parameters + in.version * parameter_count, number,
            static_cast<int>(in.microbatch)};
  }
};

/// One stage on one of its owners (a cell of the program).
struct StageRun {
  List<LayerRun> layers;
  LayerRun const* front = nullptr;  // first and last of `layers`, which every action needs
  LayerRun const* back = nullptr;
  Places x;  // by x; unused at the first stage
  Places
      dx;  // by dx, in the dy of the stage before; at the first stage one object that is not read
  void* repeated_output =
      nullptr;  // where the last layer's output goes when F is repeated: its reader has it already
  bool first = false;
  bool last = false;
  bool opens = true;  // as of Cell
  /// The types of the values that it makes for the next stage or the one before, and takes of them.
  [[nodiscard]] SlotType const& made(bool forward) const noexcept {
    return forward ? *back->ops->output : *front->ops->input;
  }
  [[nodiscard]] SlotType const& taken(bool forward) const noexcept { return made(!forward); }
};

/// One rank of the run. Written by the thread that drives it; `next` may be read by others for
/// diagnosis.
struct alignas(64) RankState {
  std::atomic<Instruction const*> next{nullptr};
  Instruction const* end = nullptr;
  Wait const* wait = nullptr;  // first wait of `next`
  Wait blocked_on;
  bool executed = false;  // `next` has run, but has not given its signals yet (timed back ends)
  bool record = false;
  bool watched = false;  // its actions are recorded, or counted
  int number = 0;
  int in_flight = 0;
  int peak_in_flight = 0;
  StageRun* cells = nullptr;  // [cells of the program]
  StepArguments const* arguments = nullptr;
  Instruction const* begin = nullptr;
  Context context;
  List<schedule::Span> spans;  // of the last iteration that computed
  bool recorded = false;       // whether that one was recorded
  // What a layer or the loss threw, and in which instruction.
  std::exception_ptr thrown;
  Instruction const* thrown_in = nullptr;
};

/// Sets a rank to the start of its program.
[[gnu::cold]] inline void begin_rank(RankState& rank, Program const& program,
                                     RankProgram const& own, bool record) noexcept {
  bool const computes = program.training || !program.exchanges();
  rank.next.store(rank.begin, std::memory_order_relaxed);
  rank.wait = own.waits.data();
  rank.executed = false;
  rank.thrown = nullptr;
  rank.record = computes && record;
  rank.in_flight = 0;
  if (!computes) return;  // keeps what the last step has recorded
  rank.peak_in_flight = 0;
  rank.recorded = record;
  rank.spans.clear();
}

/// Forward of one layer. @return y
[[gnu::always_inline]] inline void* forward_layer(RankState& rank, LayerRun const& layer,
                                                  Instruction const& in, void const* x, void* y) {
  forward_layer(rank.context, layer.action(in), x, y, layer.saved[in.kept]);
  return y;
}

/// Forward of all layers of a stage except the last.
/// @return the input of the last layer
[[gnu::noinline]] inline void const* run_inner_forward(RankState& rank, StageRun const& stage,
                                                       Instruction const& in, void const* x) {
  for (LayerRun const* layer = stage.front; layer != stage.back; ++layer)
    x = forward_layer(rank, *layer, in, x, layer->y[in.kept]);
  return x;
}

/// Forward of a model's last layer, and in evaluation the loss.
[[gnu::noinline]] inline void run_last_forward(RankState& rank, StageRun const& stage,
                                               Instruction const& in, void const* x) {
  std::size_t const m = in.microbatch;
  StepArguments const& arguments = *rank.arguments;
  LayerRun const& layer = *stage.back;
  void* const y = arguments.outputs.first != nullptr ? arguments.outputs[m] : layer.y[in.kept];
  forward_layer(rank, layer, in, x, y);
  if (!rank.context.training() && arguments.losses != nullptr)
    arguments.losses[m] =
        arguments.loss_ops.value(arguments.loss, rank.context, y, arguments.targets[m]);
}

/// F. In evaluation the last stage computes the loss as well.
[[gnu::always_inline]] inline void run_forward(RankState& rank, StageRun const& stage,
                                               Instruction const& in) {
  void const* x = stage.first ? rank.arguments->inputs[in.microbatch] : stage.x[in.x];
  if (stage.front != stage.back) x = run_inner_forward(rank, stage, in, x);
  if (stage.last) return run_last_forward(rank, stage, in, x);
  forward_layer(rank, *stage.back, in, x, stage.back->y[in.y]);
}

/// Repeats F for the values that backward needs (activation recomputation).
[[gnu::noinline]] inline void run_recompute(RankState& rank, StageRun const& stage,
                                            Instruction const& in) {
  void const* x = stage.first ? rank.arguments->inputs[in.microbatch] : stage.x[in.x];
  LayerRun const* const final_layer = &stage.layers.back();
  rank.context.set_recomputes(true);
  for (LayerRun const& layer : stage.layers)
    x = forward_layer(
        rank, layer, in, x,
        &layer != final_layer || stage.last ? layer.y[in.kept] : stage.repeated_output);
  rank.context.set_recomputes(false);
}

/// The part of a layer's backward that an instruction asks for.
[[gnu::always_inline]] inline void backward_layer(RankState& rank, LayerRun const& layer,
                                                  Instruction const& in, void const* x,
                                                  void const* dy, void* dx) {
  WantedGradients const want{in.op != Op::backward_weight, in.op != Op::backward_input};
  backward_layer(rank.context, layer.action(in), want, x, dy, dx, layer.saved[in.kept]);
  if (in.next_version != 0) [[unlikely]]
    end_gradients(rank.context, layer.action(in),
                  {(in.next_version & Instruction::ends_inputs) != 0,
                   (in.next_version & Instruction::ends_weights) != 0});
}

/// The loss of a microbatch, and its gradient into `dy`.
[[gnu::noinline]] inline void run_loss(RankState& rank, LayerRun const& last, Instruction const& in,
                                       void* dy) {
  std::size_t const m = in.microbatch;
  StepArguments const& arguments = *rank.arguments;
  rank.context.begin_action(nullptr, last.number, static_cast<int>(m));
  arguments.losses[m] = arguments.loss_ops.value_and_gradient(
      arguments.loss, rank.context, last.y[in.kept], arguments.targets[m], arguments.scales[m], dy);
}

/// Backward of all layers of a stage except the first.
/// @return the gradient of the first layer's output
[[gnu::noinline]] inline void* run_inner_backward(RankState& rank, StageRun const& stage,
                                                  Instruction const& in, void* dy) {
  for (LayerRun const* layer = stage.back; layer != stage.front; --layer) {
    LayerRun const& before = *(layer - 1);
    void* const dx = before.dy[in.inner];
    backward_layer(rank, *layer, in, before.y[in.kept], dy, dx);
    dy = dx;
  }
  return dy;
}

/// B, I or W, layer by layer from the last.
[[gnu::always_inline]] inline void run_backward(RankState& rank, StageRun const& stage,
                                                Instruction const& in) {
  void* dy = stage.back->dy[in.dy];
  if (stage.last && in.op != Op::backward_weight) run_loss(rank, *stage.back, in, dy);
  if (stage.front != stage.back) dy = run_inner_backward(rank, stage, in, dy);
  void const* const x = stage.first ? rank.arguments->inputs[in.microbatch] : stage.x[in.x];
  backward_layer(rank, *stage.front, in, x, dy, stage.dx[in.dx]);
}

/// Backward of the layers [lowest, end) of a stage, from the last.
[[gnu::noinline]] inline void run_backward_part(RankState& rank, StageRun const& stage,
                                                Instruction const& part, std::size_t lowest,
                                                std::size_t end) {
  Instruction in = part;
  in.op = op_of(kind_of(part.op));  // of the whole backward
  std::size_t const last = stage.layers.size() - 1;
  for (std::size_t i = end; i-- > lowest;) {
    LayerRun const& layer = stage.layers[i];
    void* const dy = layer.dy[i == last ? in.dy : in.inner];
    if (i == last && stage.last && in.op != Op::backward_weight) run_loss(rank, layer, in, dy);
    void const* x = stage.first ? rank.arguments->inputs[in.microbatch] : stage.x[in.x];
    void* dx = stage.dx[in.dx];
    if (i != 0) {
      x = stage.layers[i - 1].y[in.kept];
      dx = stage.layers[i - 1].dy[in.inner];
    }
    backward_layer(rank, layer, in, x, dy, dx);
  }
}

/// A back end's clock: seconds since the step began. Null where nothing is measured, or a device
/// measures by itself.
struct Clock {
  double (*read)(void*) = nullptr;
  void* self = nullptr;
  [[nodiscard]] double operator()() const { return read == nullptr ? 0 : read(self); }
};

/// Carries out a compute instruction.
[[gnu::always_inline]] inline void run_compute(RankState& rank, Instruction const& in) {
  StageRun const& stage = rank.cells[in.cell];
  if (in.op == Op::forward) return run_forward(rank, stage, in);
  if (in.op == Op::recompute) return run_recompute(rank, stage, in);
  return run_backward(rank, stage, in);
}

/// Records a compute instruction that has been carried out, and counts what is in flight.
inline void record(RankState& rank, Instruction const& in, double start_s, double end_s) {
  rank.spans.push_back({action_of(in), start_s, end_s, repeats(in.op)});
  if (!rank.cells[in.cell].opens) return;
  if (gives_output(in.op)) rank.peak_in_flight = std::max(rank.peak_in_flight, ++rank.in_flight);
  if (gives_weight_gradient(in.op)) --rank.in_flight;
}

}  // namespace stagger::detail
