// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Reader for the layer graphs that PipeDream's profiler writes.
/// @source D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training",
///         SOSP 2019; the form of its profiler's graph.txt, which DAPPLE's planner reads too.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stagger/cluster/profile.hpp>
#include <stagger/core/byte_order_mark.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/from_chars.hpp>

namespace stagger::cluster {

namespace detail {

/// A line of the file that is no edge.
struct GraphNode {
  std::string id{}, description{};
  std::size_t line = 0;
  long long number = 0;  // in its id: 12 of node12
  bool input = false;    // an input of the program, not a layer
  double forward_ms = 0, backward_ms = 0, output_bytes = 0, parameter_bytes = 0;
  std::vector<std::size_t> next{}, before{};
};

/// [nodes] a node and all from which edges lead to it.
[[nodiscard]] inline std::vector<bool> nodes_before(std::vector<GraphNode> const& nodes,
                                                    std::size_t end) {
  std::vector<bool> seen(nodes.size());
  std::vector<std::size_t> open{end};
  seen[end] = true;
  while (!open.empty()) {
    std::size_t const n = open.back();
    open.pop_back();
    for (std::size_t const before : nodes[n].before)
      if (!seen[before]) {
        seen[before] = true;
        open.push_back(before);
      }
  }
  return seen;
}

/// Leaves out branches that never join the others, such as the auxiliary heads of a classifier: a
/// chain of stages has one result. That of most layers stays, of several the last. Unused pieces
/// of a tuple are no results; they stay with the layer that makes the tuple.
/// @param order     numbers of the layers, in order
/// @param warnings  takes a sentence for each branch, with the layers that no earlier sentence counts
inline void drop_loose_ends(std::vector<GraphNode> const& nodes, std::vector<std::size_t>& order,
                            std::vector<std::string>& warnings) {
  struct End {
    GraphNode const* node;
    std::vector<bool> before;  // [nodes]
  };
  auto const is_piece = [&](std::size_t n) {
    return nodes[n].next.empty() && !nodes[n].before.empty() &&
           nodes[n].description.starts_with("__getitem__");
  };
  auto const belongs = [&](std::size_t n, End const& end) {
    return bool{end.before[is_piece(n) ? nodes[n].before.front() : n]};
  };
  std::vector<End> ends;
  for (std::size_t const n : order)
    if (nodes[n].next.empty() && !is_piece(n)) ends.push_back({&nodes[n], nodes_before(nodes, n)});
  if (ends.size() < 2) return;
  auto const size = [](End const& end) {
    return std::count(end.before.begin(), end.before.end(), true);
  };
  std::size_t kept = 0;
  for (std::size_t e = 1; e < ends.size(); ++e)
    if (size(ends[e]) >= size(ends[kept])) kept = e;
  End const& stays = ends[kept];
  std::vector<bool> told(nodes.size());
  for (End const& end : ends) {
    if (&end == &stays) continue;
    int layers = 0;
    double seconds = 0;
    for (std::size_t const n : order)
      if (belongs(n, end) && !belongs(n, stays) && !told[n]) {
        told[n] = true;
        ++layers;
        seconds += (nodes[n].forward_ms + nodes[n].backward_ms) * 1e-3;
      }
    warnings.push_back(text(end.node->id, " of line ", end.node->line,
                            " ends a branch that never joins that of ", stays.node->id, " of line ",
                            stays.node->line, "; left out of the chain: ", counted(layers, "layer"),
                            " of ", seconds, " s"));
  }
  std::erase_if(order, [&](std::size_t n) { return !belongs(n, stays); });
}

/// Reads one file. Lines are numbered from 1, as in error messages.
class GraphReader {
 public:
  GraphReader(std::string_view text, std::string const& source)
      : text_(stagger::detail::without_byte_order_mark(text)), source_(source) {}

  [[nodiscard]] Profile read(int batch) {
    read_lines();
    Profile profile{.name = source_, .batch = batch, .device = {}, .layers = {}};
    std::vector<std::size_t> order = line_up();
    drop_loose_ends(nodes_, order, profile.warnings);
    std::vector<double> const crossing = crossing_bytes(order);
    for (std::size_t i = 0; i < order.size(); ++i) {
      GraphNode const& node = nodes_[order[i]];
      profile.layers.push_back(
          {.name = node.description,
           .forward_s = node.forward_ms * 1e-3,
           .backward_s = node.backward_ms * 1e-3,
           .activation_bytes = bytes(crossing[i], node, "activation_size"),
           .parameter_bytes = bytes(node.parameter_bytes, node, "parameter_size")});
    }
    return profile;
  }

 private:
  struct Edge {
    std::size_t from, to, line;
  };

  [[noreturn, gnu::cold]] void refuse(std::size_t line, std::string_view value,
                                      std::string const& why) const {
    std::string shown(value.substr(0, 60));
    raise(Errc::bad_data, source_, ", line ", line, ", column ", column_of(value), ": '", shown,
          "' ", why);
  }

  /// The column of a piece of the text; 1 if it is not part of the text.
  [[nodiscard]] std::size_t column_of(std::string_view value) const {
    if (value.data() < text_.data() || value.data() > text_.data() + text_.size()) return 1;
    auto const at = static_cast<std::size_t>(value.data() - text_.data());
    std::size_t const stop = at == 0 ? std::string_view::npos : text_.rfind('\n', at - 1);
    return stop == std::string_view::npos ? at + 1 : at - stop;
  }

  void read_lines() {
    std::size_t number = 0;
    for (std::size_t begin = 0; begin < text_.size();) {
      std::size_t const end = std::min(text_.find('\n', begin), text_.size());
      std::string_view line = text_.substr(begin, end - begin);
      begin = end + 1;
      ++number;
      std::size_t const indent = std::min(line.find_first_not_of(" \t\r"), line.size());
      line.remove_prefix(indent);
      line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
      if (line.empty()) continue;
      if (line.find(" -- ") == std::string_view::npos)
        refuse(number, line, "is neither a node nor an edge of PipeDream's graph");
      if (indent > 0)
        edge(line, number);
      else
        node(line, number);
    }
    if (nodes_.empty())
      raise(Errc::bad_data, source_, " holds no layer; give a profile with a line for each layer");
  }

  void node(std::string_view line, std::size_t number) {
    std::size_t const dash = line.find(" -- ");
    std::string_view const id = line.substr(0, dash);
    GraphNode made{.id = std::string(id), .line = number};
    std::size_t const digits = std::min(id.find_first_of("0123456789"), id.size());
    std::from_chars(id.data() + digits, id.data() + id.size(), made.number);
    std::string_view rest = line.substr(dash + 4);
    std::size_t const next = rest.find(" -- ");
    if (next == std::string_view::npos) refuse(number, id, "is a node without its times and sizes");
    made.description = std::string(rest.substr(0, next));
    made.input = made.description.starts_with("Input");
    rest.remove_prefix(next + 4);
    made.forward_ms = field(rest, "forward_compute_time", id, number);
    made.backward_ms = field(rest, "backward_compute_time", id, number);
    made.output_bytes = field(rest, "activation_size", id, number);
    made.parameter_bytes = field(rest, "parameter_size", id, number);
    if (!index_.emplace(made.id, nodes_.size()).second)
      refuse(number, id, "is a node for the second time");
    nodes_.push_back(std::move(made));
  }

  /// A number, or the sum of a list `[1.0; 2.0]`.
  [[nodiscard]] double field(std::string_view meta, std::string_view key, std::string_view id,
                             std::size_t number) const {
    std::string const name(key);
    std::size_t const at = meta.find(name + "=");
    if (at == std::string_view::npos) refuse(number, id, text("is a node without ", name));
    std::string_view value = meta.substr(at + key.size() + 1);
    bool const list = value.starts_with('[');
    if (list) value.remove_prefix(1);
    for (double sum = 0;;) {
      double one = 0;
      auto const [stop, error] = from_chars(value.data(), value.data() + value.size(), one);
      auto const length = static_cast<std::size_t>(stop - value.data());
      std::string_view const after = value.substr(length);
      bool const ends = list ? after.starts_with(']') || after.starts_with(';')
                             : after.empty() || after.front() == ',' || after.front() == ' ';
      if (error != std::errc{} || !(one >= 0) || !(one <= 1e300) || !ends)
        refuse(number, value.substr(0, value.find_first_of(",;] ")),
               text("is the ", name, " of ", std::string(id),
                    "; give a finite number that is not negative"));
      sum += one;
      if (!list || after.front() == ']') return sum;
      value = after.substr(std::min(after.find_first_not_of("; "), after.size()));
    }
  }

  void edge(std::string_view line, std::size_t number) {
    std::size_t const dash = line.find(" -- ");
    auto const end_of = [&](std::string_view id, char const* why) {
      auto const found = index_.find(std::string(id));
      if (found == index_.end()) refuse(number, id, why);
      return found->second;
    };
    std::size_t const from =
        end_of(line.substr(0, dash), "begins an edge but is no node of a line above");
    std::size_t const to =
        end_of(line.substr(dash + 4), "ends an edge but is no node of a line above");
    nodes_[from].next.push_back(to);
    nodes_[to].before.push_back(from);
    edges_.push_back({from, to, number});
  }

  /// The layers in the order of the edges, ties by number; inputs are no layers.
  [[nodiscard]] std::vector<std::size_t> line_up() const {
    std::vector<std::size_t> missing(nodes_.size());
    std::set<std::pair<long long, std::size_t>> ready;  // by number
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      missing[n] = nodes_[n].before.size();
      if (missing[n] == 0) ready.emplace(nodes_[n].number, n);
    }
    std::vector<std::size_t> order;
    std::size_t taken = 0;
    while (!ready.empty()) {
      std::size_t const n = ready.begin()->second;
      ready.erase(ready.begin());
      ++taken;
      if (!nodes_[n].input) order.push_back(n);
      for (std::size_t const next : nodes_[n].next)
        if (--missing[next] == 0) ready.emplace(nodes_[next].number, next);
    }
    if (taken != nodes_.size()) refuse_circle(missing);
    if (order.empty())
      raise(Errc::bad_data, source_,
            " holds inputs but no layer; give a profile with a line for each layer");
    return order;
  }

  /// Walks back along nodes that never became ready until it reaches one for the second time: that
  /// node is on a cycle.
  [[noreturn]] void refuse_circle(std::vector<std::size_t> const& missing) const {
    std::size_t n = 0;
    while (missing[n] == 0) ++n;
    std::vector<bool> seen(nodes_.size());
    std::size_t behind = n;
    while (!seen[n]) {
      seen[n] = true;
      behind = n;
      for (std::size_t const before : nodes_[n].before)
        if (missing[before] > 0) n = before;
    }
    for (Edge const& e : edges_)
      if (e.from == n && e.to == behind)
        refuse(e.line, nodes_[n].id + " -- " + nodes_[behind].id,
               "is an edge of a cycle; no order of the layers has each after its inputs");
    refuse(nodes_[n].line, nodes_[n].id, "is a node that depends on itself; a model has no cycles");
  }

  /// Bytes over the boundary after each layer: every tensor made at or before it and used after
  /// it, once; after the last layer, its own output.
  [[nodiscard]] std::vector<double> crossing_bytes(std::vector<std::size_t> const& order) const {
    std::vector<std::size_t> place(nodes_.size());  // 0 for what was left out
    for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
    std::vector<double> step(order.size() + 1);  // what each boundary adds to the one before
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::size_t last = i;
      for (std::size_t const next : nodes_[order[i]].next) last = std::max(last, place[next]);
      if (last == i) continue;
      step[i] += nodes_[order[i]].output_bytes;
      step[last] -= nodes_[order[i]].output_bytes;
    }
    std::vector<double> crossing(order.size());
    double now = 0;
    for (std::size_t i = 0; i < order.size(); ++i) crossing[i] = std::max(now += step[i], 0.0);
    crossing.back() = nodes_[order.back()].output_bytes;
    return crossing;
  }

  [[nodiscard]] std::uint64_t bytes(double value, GraphNode const& node, char const* field) const {
    if (value > 9e15)
      refuse(node.line, node.id, text("has ", field, " = ", value, "; give less than 9e15 bytes"));
    return static_cast<std::uint64_t>(std::llround(value));
  }

  std::string_view text_;
  std::string const& source_;
  std::vector<GraphNode> nodes_{};
  std::vector<Edge> edges_{};
  std::map<std::string, std::size_t> index_{};
};

}  // namespace detail

/// True if the text looks like a graph.txt rather than JSON.
[[nodiscard]] inline bool is_graph_txt(std::string_view text) {
  text = stagger::detail::without_byte_order_mark(text);
  std::size_t const first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] != '{' && text[first] != '[' &&
         text.find(" -- ") != std::string_view::npos;
}

/// The layers of a graph.txt as a chain: in the order of its edges, ties by the node's number.
/// Nodes named `Input...` are no layers. A boundary is charged with every tensor that crosses it,
/// each once. Of branches that never join, the one of most layers stays, and `warnings` of the
/// profile names the others.
/// @param  source  the name of the file in error messages
/// @param  batch   the samples that its times and sizes are for, which the file does not say
/// @throws Error   bad_data naming file, line, column and value: for a malformed line or
///                 number, an edge to a node that does not exist, a cycle, and a batch below 1
[[nodiscard]] inline Profile read_graph_txt(std::string_view text, std::string const& source,
                                            int batch) {
  if (batch < 1)
    raise(Errc::bad_data, "the batch that ", source, " was profiled with is given as ", batch,
          "; give 1 sample or more");
  return detail::GraphReader(text, source).read(batch);
}

}  // namespace stagger::cluster
