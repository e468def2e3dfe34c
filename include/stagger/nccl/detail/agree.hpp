// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Processes make sure, before they send each other anything, that they run the same thing.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/nccl/detail/fleet.hpp>

namespace stagger::nccl::detail {

/// Compares facts between all processes, each of which has one GPU, by their digests.
/// @throws Error  mismatch for the first fact that differs, naming it and who differs
[[gnu::cold]] inline void agree(Fleet& fleet, std::vector<collective::Fact> const& facts,
                                double seconds) {
  Gpu& gpu = fleet[0];
  fleet.select(0);
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
  for (collective::Backoff backoff; !gpu.home.idle(); backoff.pause()) {
  }
  for (std::size_t i = 0; i < width; ++i)
    for (std::size_t r = 1; r < ranks; ++r)
      if (all.data()[r * width + i] != all.data()[i])
        throw stagger::Error(Errc::mismatch,
                             text("processes disagree on ", facts[i].name, ": here (process ",
                                  gpu.place, ") it is ", facts[i].value, ", and process ", r,
                                  " has not what process 0 has; start all "
                                  "processes with one program, one model and the same options"));
}

/// Of a pipeline. One number of facts for all models, since their digests stand side by side.
[[nodiscard]] [[gnu::cold]] inline std::vector<collective::Fact> facts_of(
    stagger::detail::Machine& machine) {
  Options const& options = machine.options();
  std::string shapes;
  std::string values;
  auto& parameters = machine.parameters();
  for (std::size_t l = 0; l < parameters.size(); ++l) {
    std::vector<ParameterState> states;
    parameters[l].append_states(states);
    for (auto const& state : states) {
      shapes += text(state.name, " ", state.value.size(), " ",
                     state.type == ElementType::f32 ? "float" : "double", ", ");
      values += text(static_cast<std::int64_t>(collective::digest(
                         {reinterpret_cast<char const*>(state.value.data()), state.value.size()})),
                     " ");
    }
  }
  std::string shares;
  for (auto const& part : options.replicas.parts())
    shares += text(part.replica == 0 && !shares.empty() ? ", " : " ",
                   static_cast<std::int64_t>(part.own));
  return {collective::library_fact(),
          {"the number of layers", std::to_string(parameters.size())},
          {"the number of stages", std::to_string(machine.stages())},
          {"the parameters", shapes},
          {"the values of the parameters",
           text("of digest ", static_cast<std::int64_t>(collective::digest(values)))},
          {"Options::clip_norm", options.clip_norm ? text(*options.clip_norm) : "none"},
          {"Options::seed", std::to_string(options.seed)},
          {"the shares of Options::replicas", shares.empty() ? "none" : shares},
          {"Options::recompute", options.recompute ? "true" : "false"}};
}

/// Of a program: what every rank does, and where it runs.
[[nodiscard]] [[gnu::cold]] inline std::vector<collective::Fact> facts_of(
    Program const& program, std::vector<int> const& place) {
  std::string places;
  for (int const p : place) places += text(places.empty() ? "" : " ", p);
  std::string code;
  for (auto const& rank : program.ranks) {
    for (Instruction const& in : rank.code)
      for (auto const number :
           {static_cast<unsigned>(in.op), static_cast<unsigned>(in.stage),
            static_cast<unsigned>(in.microbatch), unsigned{in.x}, unsigned{in.y}, unsigned{in.dy},
            unsigned{in.dx}, unsigned{in.give[0]}})
        code += static_cast<char>(number % 251);
    code += ';';
  }
  return {{"what the step does", program.training ? "training" : "forward only"},
          {"the number of microbatches", std::to_string(program.microbatches)},
          {"the GPUs of the ranks", places},
          {"the program", text("of digest ", static_cast<std::int64_t>(collective::digest(code)))}};
}

}  // namespace stagger::nccl::detail
