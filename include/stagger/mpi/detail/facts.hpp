// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What processes that share a pipeline must have alike.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/collective/handshake.hpp>
#include <stagger/core/text.hpp>
#include <stagger/engine/cargo.hpp>

namespace stagger::mpi::detail {

/// A digest of several things, in order.
class Digest {
 public:
  Digest& add(std::string_view words) noexcept {
    value_ ^= collective::digest(words) + 0x9e3779b97f4a7c15U + (value_ << 6U) + (value_ >> 2U);
    return *this;
  }
  template <class... T> Digest& numbers(T... number) noexcept {
    std::int64_t const all[] = {static_cast<std::int64_t>(number)...};
    return add({reinterpret_cast<char const*>(all), sizeof all});
  }
  [[nodiscard]] std::string words() const {
    constexpr char digits[] = "0123456789abcdef";
    std::string hex(16, '0');
    for (std::size_t i = 0; i < 16; ++i) hex[i] = digits[value_ >> (60 - 4 * i) & 15U];
    return hex;
  }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

/// Of a pipeline: version, model, cuts, options.
[[nodiscard]] inline std::vector<collective::Fact> facts_of(stagger::detail::Cargo const& cargo) {
  std::vector<collective::Fact> facts{collective::library_fact()};
  auto& machine = cargo.machine;
  auto& parameters = machine.parameters();
  Options const& options = machine.options();
  facts.push_back({"the number of layers", std::to_string(parameters.size())});
  std::string cuts;
  for (std::size_t l = 1; l < parameters.size(); ++l)
    if (cargo.stage_of(l) != cargo.stage_of(l - 1)) cuts += text(cuts.empty() ? "" : " ", l);
  facts.push_back({"the first layers of the stages", cuts});
  std::string replicas;
  for (auto const& part : options.replicas.parts())
    replicas += text(part.position, ":", static_cast<std::int64_t>(part.own), "/",
                     static_cast<std::int64_t>(part.total), " ");
  facts.push_back({"Options::replicas", replicas});
  facts.push_back({"Options::clip_norm", options.clip_norm ? text(*options.clip_norm) : "none"});
  facts.push_back({"Grouped::shard_optimizer", cargo.machine.shards() ? "true" : "false"});
  facts.push_back({"Options::seed", std::to_string(options.seed)});
  facts.push_back({"Options::recompute", options.recompute ? "true" : "false"});
  facts.push_back({"Options::spare_slots",
                   options.spare_slots ? std::to_string(*options.spare_slots) : "as laid out"});
  for (std::size_t l = 0; l < parameters.size(); ++l) {
    auto const& layer = parameters[l];
    std::string shape;
    Digest values;
    for (std::size_t i = 0; i < layer.count(); ++i) {
      auto const& d = layer.declaration(i);
      shape += text(shape.empty() ? "" : ", ", l, ".", d.name, ": ", layer.value_bytes(i),
                    " bytes of ", d.type == stagger::ElementType::f32 ? "float" : "double");
      auto const origin = layer.origin(i);
      values.add({reinterpret_cast<char const*>(origin.data()), origin.size()});
    }
    facts.push_back({text("the parameters of layer ", l), shape});
    facts.push_back({text("the values of layer ", l, "'s parameters"), values.words()});
  }
  return facts;
}

/// Of a program: what every rank does, and where it runs.
[[nodiscard]] inline std::vector<collective::Fact> facts_of(Program const& program,
                                                            std::vector<int> const& process_of) {
  std::vector<collective::Fact> facts;
  facts.push_back({"what the step does", program.training ? "training" : "forward only"});
  facts.push_back({"the number of microbatches", std::to_string(program.microbatches)});
  facts.push_back({"the number of ranks", std::to_string(program.ranks.size())});
  std::string places;
  for (int const p : process_of) places += text(places.empty() ? "" : " ", p);
  facts.push_back({"the processes of the ranks", places});
  std::string groups;
  for (GradientGroup const& group : program.groups)
    groups += text(groups.empty() ? "" : " ", group.stage, ":", group.lowest);
  facts.push_back({"the groups of gradients", groups});
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    Digest code;
    for (Instruction const& in : program.ranks[r].code)
      code.numbers(in.op, in.gives, in.waits, in.stage, in.cell, in.microbatch, in.x, in.y, in.kept,
                   in.dy, in.dx, in.inner, in.version, in.next_version,
                   in.gives > 0 ? in.give[0] : 0, in.gives > 1 ? in.give[1] : 0,
                   in.gives > 2 ? in.give[2] : 0);
    for (Wait const& wait : program.ranks[r].waits) code.numbers(wait.signal, wait.count);
    facts.push_back({text("the program of rank ", r), code.words()});
  }
  return facts;
}

}  // namespace stagger::mpi::detail
