// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Processes make sure, before they send each other anything, that they run the same thing.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/optimizer_numbers.hpp>
#include <stagger/nccl/detail/gpu_set.hpp>
#include <stagger/program/facts.hpp>

namespace stagger::nccl::detail {

/// Compares facts between all processes, each of which has one GPU, by their digests.
/// @throws Error  mismatch for the first fact that differs, naming it and who differs
[[gnu::cold]] inline void agree(GpuSet& gpu_set, std::vector<collective::Fact> const& facts,
                                double seconds) {
  Gpu& gpu = gpu_set[0];
  gpu_set.select(0);
  auto const ranks = static_cast<std::size_t>(gpu.world.size());
  std::size_t const width = facts.size();
  cuda::Pinned<std::uint64_t> all(ranks * width);
  cuda::Tensor<std::uint64_t> there({ranks * width});
  auto* const own = all.data() + static_cast<std::size_t>(gpu.place) * width;
  for (std::size_t i = 0; i < width; ++i)
    own[i] = collective::digest(facts[i].name + "=" + facts[i].value);
  std::size_t const bytes = all.size() * sizeof(std::uint64_t);
  cuda::check(
      cudaMemcpyAsync(there.data(), all.data(), bytes, cudaMemcpyHostToDevice, gpu.home.get()),
      "copy what processes compare");
  gpu.world.all_gather(std::span(there.data(), there.size())).wait(seconds);
  cuda::check(
      cudaMemcpyAsync(all.data(), there.data(), bytes, cudaMemcpyDeviceToHost, gpu.home.get()),
      "copy what processes compare");
  for (stagger::detail::Backoff backoff; !gpu.home.idle(); backoff.pause()) {
  }
  for (std::size_t i = 0; i < width; ++i)
    for (std::size_t r = 1; r < ranks; ++r)
      if (all.data()[r * width + i] != all.data()[i])
        raise(Errc::mismatch, "processes disagree on ", facts[i].name, ": here (process ",
              gpu.place, ") it is ", facts[i].value, ", and process ", r,
              " has not what process 0 has; start all "
              "processes with one program, one model and the same options");
}

/// What a back end was told, that all processes must be told alike.
struct Told {
  bool capture = false;
  bool shapes_change = false;
  std::size_t ahead = 0;
};

/// Of a pipeline. One number of facts for all models, since their digests stand side by side.
[[nodiscard]] [[gnu::cold]] inline std::vector<collective::Fact> facts_of(
    stagger::detail::Machine& machine, Told const& told) {
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
  for (std::size_t const first : machine.first_layers())
    cuts += text(cuts.empty() ? "" : " ", static_cast<std::int64_t>(first));
  return {collective::library_fact(),
          {"the number of layers", std::to_string(parameters.size())},
          {"the number of stages", std::to_string(machine.stages())},
          {"the first layers of the stages", cuts},
          {"the parameters", shapes},
          {"the values of the parameters", text("of digest ", values.words())},
          {"Options::clip_norm", options.clip_norm ? text(*options.clip_norm) : "none"},
          {"Options::seed", std::to_string(options.seed)},
          {"the shares of Options::replicas", shares.empty() ? "none" : shares},
          {"Options::recompute", yes(options.recompute)},
          {"Options::spare_slots",
           options.spare_slots ? std::to_string(*options.spare_slots) : "as laid out"},
          {"Gpus::capture", yes(told.capture)},
          {"Gpus::shapes_change", yes(told.shapes_change)},
          {"Gpus::ahead", std::to_string(told.ahead)}};
}

/// Of the program that is loaded: what every rank does, and where it runs; and of what may change
/// from program to program.
[[nodiscard]] [[gnu::cold]] inline std::vector<collective::Fact> facts_of(
    stagger::detail::Machine const& machine, std::vector<int> const& place) {
  Program const& program = machine.program();
  auto const& grouping = machine.grouping();
  std::string places;
  for (int const p : place) places += text(places.empty() ? "" : " ", p);
  stagger::detail::Digest numbers;
  if (program.training) {
    stagger::detail::require_numbers(machine.optimizer_digest());
    numbers.numbers(machine.optimizer_digest());
  }
  stagger::detail::Digest code;
  for (auto const& rank : program.ranks)
    code.numbers(stagger::detail::digest_of(rank).value(), rank.beside);
  for (Cut const cut : program.cuts) code.numbers(cut.from, cut.to);
  return {
      {"the steps taken so far", std::to_string(machine.steps())},
      {"the optimizer's numbers, such as its learning rate", text("of digest ", numbers.words())},
      {"AllReduce::by", grouping.by == collective::By::slices ? "slices" : "library"},
      {"AllReduce::measured_steps", std::to_string(grouping.measured_steps)},
      {"AllReduce::renew_every", std::to_string(grouping.renew_every)},
      {"what the step does", program.training ? "training" : "forward only"},
      {"the number of microbatches", std::to_string(program.microbatches)},
      {"the number of ranks", std::to_string(program.ranks.size())},
      {"the GPUs of the ranks", places},
      {"the groups of gradients", stagger::detail::words_of_groups(program)},
      {"the program", text("of digest ", code.words())}};
}

}  // namespace stagger::nccl::detail
