// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The options of a device policy, and what must hold before a program runs on GPUs: it has
///         the kernels that it needs, and some facts are equal in all processes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/core/combinations.hpp>
#include <stagger/core/content_digest.hpp>
#include <stagger/cuda/detail/processes.hpp>
#include <stagger/cuda/graph.hpp>
#include <stagger/cuda/kernels.hpp>
#include <stagger/cuda/ranges.hpp>
#include <stagger/cuda/wire.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/program/facts.hpp>

namespace stagger::cuda::detail {

/// The options that a device policy gives: see the members of `cuda::Gpus` and `nccl::Gpus`.
struct GpusOptions {
  ParameterKernels const* kernels = nullptr;
  bool capture = false;
  Ranges ranges{};
  GraphCounts* counts = nullptr;
  int ahead = 2;
  Wires wires{};
  stagger::detail::BatchContents contents{};  // null functions: batches are not compared
};

/// @param together  whether other processes take the same steps
/// @throws stagger::Error  bad_configuration, naming the kernel that is missing
[[gnu::cold]] inline void require_runnable(stagger::detail::Machine const& machine,
                                           ParameterKernels const* given, bool together) {
  Program const& program = machine.program();
  if (!program.training || machine.model.parameter_count() == 0) return;
  ParameterKernels const kernels = given != nullptr ? *given : ParameterKernels{};
  Options const& options = machine.options();
  bool const looks = options.non_finite != NonFinite::ignore;
  using namespace stagger::detail;
  Features const features =
      (feature::own_memory | feature::trains)
          .with(feature::apart, together)
          .with(feature::kernel, machine.model.optimizer.enqueued_bytes != 0)
          .with(feature::asks_scale, machine.model.optimizer.asks_scale)
          .with(feature::two_owners, std::cmp_greater(program.cells.size(), program.stages))
          .with(feature::looks, looks)
          .with(feature::skips, options.non_finite == NonFinite::skip)
          .with(feature::clips, options.clip_norm.has_value())
          .with(feature::adds_by_kernel, kernels.add != nullptr)
          .with(feature::norm_by_kernel, kernels.sum_squares != nullptr && kernels.scale != nullptr)
          .with(feature::finds_by_kernel, kernels.sum_squares != nullptr &&
                                              kernels.scale != nullptr && kernels.finds_non_finite)
          .with(feature::begins_by_kernel, kernels.begin != nullptr);
  for (Rule const rule :
       {Rule::update_by_kernel, Rule::sum_by_kernel, Rule::look_by_kernel, Rule::look_before_update,
        Rule::number_skipped, Rule::number_apart, Rule::clip_by_kernel})
    require_rule(rule, features);
  if (looks && program.flushes && program.updates_early())
    require_rule(Rule::sum_by_kernel, features | feature::two_owners,
                 "layers that are updated in each pass");
}

/// @param together  whether other processes take the same steps
/// @param worker    whether a step ends with the exchange with a parameter server
/// @throws stagger::Error  bad_configuration if a graph cannot be recorded
[[gnu::cold]] inline void require_capture(bool on, GpusOptions const& device, bool together,
                                          bool worker) {
  namespace feature = stagger::detail::feature;
  auto const features = stagger::detail::Features{}
                            .with(feature::capture, on)
                            .with(feature::shapes_change, device.wires.shapes_change)
                            .with(feature::apart, together)
                            .with(feature::server, worker);
  require_rule(stagger::detail::Rule::captured_worker, features);
  require_rule(stagger::detail::Rule::captured_shapes, features);
}

/// The facts of a pipeline. Their number is the same for all models, since processes compare them
/// one by one.
[[nodiscard]] [[gnu::cold]] inline std::vector<collective::Fact> facts_of(
    stagger::detail::Machine& machine, GpusOptions const& device) {
  Options const& options = machine.options();
  auto const yes = [](bool is) { return is ? "true" : "false"; };
  std::string shapes;
  stagger::detail::Digest values;
  auto& parameters = machine.parameters();
  for (std::size_t l = 0; l < parameters.size(); ++l) {
    std::vector<ParameterState> states;
    parameters[l].append_states(states);
    for (auto const& state : states) {
      shapes += text(state.name, " ", state.value.size(), " ",
                     state.type == ElementType::f32 ? "float" : "double", ", ");
      values.add({reinterpret_cast<char const*>(state.value.data()), state.value.size()});
    }
  }
  std::string shares;
  for (auto const& part : options.replicas.parts())
    shares += text(part.replica == 0 && !shares.empty() ? ", " : " ",
                   static_cast<std::int64_t>(part.own));
  std::string cuts;
  for (std::size_t const first : machine.model.first_layer)
    cuts += text(cuts.empty() ? "" : " ", static_cast<std::int64_t>(first));
  return {collective::library_fact(),
          {"the number of layers", std::to_string(parameters.size())},
          {"the number of stages", std::to_string(machine.stages())},
          {"the first layers of the stages", cuts},
          {"the parameters", shapes},
          {"the values of the parameters", text("of digest ", values.hex())},
          {"Options::clip_norm", options.clip_norm ? text(*options.clip_norm) : "none"},
          {"Options::non_finite", name(options.non_finite)},
          {"Options::seed", std::to_string(options.seed)},
          {"the shares of Options::replicas", shares.empty() ? "none" : shares},
          {"AllReduce::shard_optimizer", yes(machine.shards())},
          {"Options::recompute", yes(options.recompute)},
          {"Options::spare_slots",
           options.spare_slots ? std::to_string(*options.spare_slots) : "as laid out"},
          {"Gpus::capture", yes(device.capture)},
          {"Gpus::shapes_change", yes(device.wires.shapes_change)},
          {"Gpus::ahead", std::to_string(device.ahead)}};
}

/// The facts of the loaded program: what every rank does and where it runs, and what may change
/// from program to program.
[[nodiscard]] [[gnu::cold]] inline std::vector<collective::Fact> facts_of(
    stagger::detail::Machine const& machine, std::vector<int> const& places) {
  Program const& program = machine.program();
  auto const& grouping = machine.run.grouping;
  std::string gpus;
  for (int const at : places) gpus += text(gpus.empty() ? "" : " ", at);
  stagger::detail::Digest numbers;
  if (program.training) {
    stagger::detail::require_numbers(machine.optimizer_digest());
    numbers.numbers(machine.optimizer_digest());
  }
  stagger::detail::Digest code;
  for (auto const& rank : program.ranks)
    code.numbers(stagger::detail::digest_of(rank).value(), rank.reducer_for);
  for (RowEdge const edge : program.row_edges) code.numbers(edge.from, edge.to);
  return {{"the steps taken so far", std::to_string(machine.steps())},
          {"the optimizer's numbers, such as its learning rate", text("of digest ", numbers.hex())},
          {"AllReduce::by", grouping.by == collective::By::slices ? "slices" : "library"},
          {"AllReduce::measured_steps", std::to_string(grouping.measured_steps)},
          {"AllReduce::renew_every", std::to_string(grouping.renew_every)},
          {"what the step does", program.training ? "training" : "forward only"},
          {"the number of microbatches", std::to_string(program.microbatches)},
          {"the number of ranks", std::to_string(program.ranks.size())},
          {"the GPUs of the ranks", gpus},
          {"the groups of gradients", stagger::detail::describe_groups(program)},
          {"the program", text("of digest ", code.hex())}};
}

/// Compares the batches that processes are given, in the first step of a program: later ones do not
/// wait for other processes.
/// @throws Error  mismatch if they differ
[[gnu::cold]] inline void compare_batches(Processes* processes,
                                          stagger::detail::Machine const& machine,
                                          GpusOptions const& device,
                                          stagger::detail::StepArguments const& step) {
  stagger::detail::BatchContents const& contents = device.contents;
  if (processes == nullptr || contents.input == nullptr) return;
  constexpr char const* remedy =
      "give all processes the same batches, with the rows of all replicas, of which each takes its "
      "own, or turn this check off with nccl::Gpus::check_batches";
  auto const digest = [&](auto add, stagger::detail::Places const& values) {
    stagger::detail::Digest shown;
    if (values.first != nullptr)
      shown.numbers(stagger::detail::content_digest(
          add, values.first, values.stride, static_cast<unsigned>(machine.program().microbatches)));
    return text("of digest ", shown.hex());
  };
  collective::Fact const facts[] = {
      {"the inputs of the step", digest(contents.input, step.inputs), remedy},
      {"the targets of the step", digest(contents.target, step.targets), remedy}};
  processes->agree(facts);
}

}  // namespace stagger::cuda::detail
