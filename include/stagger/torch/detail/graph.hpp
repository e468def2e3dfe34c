// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Halves of a backward pass through libtorch's graph: first the gradients of inputs, then
///         those of parameters.

#include <stagger/core/requirements.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace stagger::torch::detail {

using ::torch::autograd::Edge;
using ::torch::autograd::edge_list;
using ::torch::autograd::Node;
using ::torch::autograd::variable_list;

/// Runs libtorch's engine on the calling thread.
/// @param keep        the graph is walked once more
/// @param accumulate  adds to `grad` of all leaves; otherwise gives the gradients at `outputs`
inline variable_list walk(edge_list const& roots, variable_list const& gradients, bool keep,
                          bool accumulate, edge_list const& outputs = {}) {
  return ::torch::autograd::Engine::get_default_engine().execute(roots, gradients, keep, false,
                                                                 accumulate, outputs);
}
[[nodiscard]] inline Edge edge_of(at::Tensor const& tensor) {
  return ::torch::autograd::impl::gradient_edge(tensor);
}

/// Where the graph of a forward pass leaves the chain from the output to the input for parameters.
/// The first half of a backward pass follows the chain and keeps the gradients at these nodes; after
/// that, `cut` frees what the rest of the chain has kept, and the second half begins at them.
class Branches {
 public:
  /// Searches the graph, each node once.
  /// @return  whether the input is reached at all
  bool find(at::Tensor const& output, at::Tensor const& input) {
    places_.clear();
    order_.clear();
    clear();
    Node* const end = edge_of(input).function.get();
    Node* const start = output.grad_fn().get();
    visit(start, end);
    while (!open_.empty()) {
      auto& [node, next, reaches] = open_.back();
      if (next == node->next_edges().size()) {
        // A node from which nothing leads on is a leaf; other than the input, a parameter.
        if (next == 0 && reaches == 0) reaches = to_parameter;
        auto const done = reaches;
        places_[node] = done;
        order_.push_back(node);
        open_.pop_back();
        if (!open_.empty()) open_.back().reaches |= done;
        continue;
      }
      Node* const other = node->next_edges()[next++].function.get();
      if (other == nullptr) continue;
      if (auto const known = places_.find(other); known != places_.end())
        reaches |= known->second;
      else
        visit(other, end);
    }
    if ((places_[start] & to_input) == 0) return false;
    for (Node* const node : order_)
      if (node != end && (places_[node] & to_input) != 0) add_if_branch(node);
    return true;
  }
  /// All inputs of the nodes found, in the order of the search.
  [[nodiscard]] edge_list const& nodes() const noexcept { return nodes_; }
  /// Cuts the edges that lead from these nodes along the chain, while the output still holds all.
  /// The other nodes of the chain stay where these ones have kept a tensor that names its node, so
  /// they free what they have kept themselves.
  void cut() {
    for (Node* const node : chain_) node->release_variables();
    for (auto const& [node, edge] : edges_) cut_edge(*node, edge);
    clear();
  }

 private:
  static constexpr std::uint8_t to_input = 1;
  static constexpr std::uint8_t to_parameter = 2;
  struct Open {
    Node* node;
    std::size_t next;  // edge to follow
    std::uint8_t reaches;
  };

  static void cut_edge(Node& node, std::size_t edge) {
    node.next_edges()[edge] = Edge();
    // Of a write into a part of a tensor, the node inside must have the same edges but the first.
    if (auto* const slices = dynamic_cast<::torch::autograd::CopySlices*>(&node);
        slices && edge != 0)
      if (Node* const inner = slices->fn.get(); inner && edge < inner->next_edges().size())
        inner->next_edges()[edge] = Edge();
  }
  void clear() {
    nodes_.clear();
    edges_.clear();
    chain_.clear();
  }
  void visit(Node* node, Node const* end) {
    places_.emplace(node, 0);
    open_.push_back({node, 0, node == end ? to_input : std::uint8_t{0}});
  }
  void add_if_branch(Node* node) {
    auto const reached = [&](Edge const& edge) {
      return edge.function ? places_[edge.function.get()] : 0;
    };
    bool branches = false;
    for (Edge const& edge : node->next_edges())
      branches = branches || reached(edge) == to_parameter;
    if (!branches) return chain_.push_back(node);
    auto const own = node->getptr();
    for (std::uint32_t k = 0; k < node->num_inputs(); ++k) nodes_.emplace_back(own, k);
    for (std::size_t e = 0; e < node->next_edges().size(); ++e)
      if ((reached(node->next_edges()[e]) & to_input) != 0) edges_.emplace_back(own, e);
  }

  std::unordered_map<Node const*, std::uint8_t> places_;  // what each node reaches
  std::vector<Open> open_;
  std::vector<Node*> order_;  // each after those that it leads to
  std::vector<Node*> chain_;  // nodes of the chain where nothing branches off
  edge_list nodes_;
  std::vector<std::pair<std::shared_ptr<Node>, std::size_t>> edges_;
};

}  // namespace stagger::torch::detail
