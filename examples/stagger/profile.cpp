// SPDX-License-Identifier: Apache-2.0
#include "profile.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "command.hpp"

namespace tool {

namespace {

using nlohmann::json;

[[noreturn]] void bad_data(std::string const& sentence) {
  throw stagger::Error(stagger::Errc::bad_data, sentence);
}

/// Line, column and the text at a byte of a file, as errors name them.
std::string place(std::string const& text, std::size_t at) {
  at = std::min(at, text.size());
  std::size_t const line = static_cast<std::size_t>(
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  std::size_t const break_at = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
  std::size_t const begin = break_at == std::string::npos ? 0 : break_at + 1;
  std::string value = text.substr(at, 20);
  value = value.substr(0, value.find('\n'));
  return ", line " + std::to_string(line + 1) + ", column " + std::to_string(at - begin + 1) +
         ": '" + value + "' ";
}

json parse(std::string const& text, std::string const& source) {
  try {
    return json::parse(text);
  } catch (json::parse_error const& error) {
    std::size_t const at = error.byte > 0 ? error.byte - 1 : 0;
    bad_data(source + place(text, at) +
             (at >= text.size() ? "is where the file ends too early" : "is not JSON here"));
  }
}

/// A number of a layer that is finite and not negative.
double number(json const& layer, char const* key, std::string const& where) {
  auto const found = layer.find(key);
  if (found == layer.end()) bad_data(where + " has no '" + key + "'; give it a number");
  if (!found->is_number() || !(found->get<double>() >= 0) || !(found->get<double>() <= 1e300)) {
    bad_data(where + " has " + key + " = " + found->dump() +
             "; give a finite number that is not negative");
  }
  return found->get<double>();
}

std::uint64_t to_bytes(double value, std::string const& where) {
  if (value > 9e15) bad_data(where + " has more than 9e15 bytes of parameters");
  return static_cast<std::uint64_t>(std::llround(value));
}

Layers from_json(std::string const& text, std::string const& source) {
  json const profile = parse(text, source);
  if (!profile.is_object() || !profile.contains("layers") || !profile["layers"].is_array() ||
      profile["layers"].empty()) {
    bad_data(source + " is no profile: it needs \"layers\": [{...}, ...] with one or more layers");
  }
  Layers layers;
  for (auto const& layer : profile["layers"]) {
    std::string const where = source + ": layer " + std::to_string(layers.bytes.size() + 1);
    if (!layer.is_object())
      bad_data(where + " is " + layer.dump().substr(0, 40) + "; give an object");
    layers.forward_s += number(layer, "forward_s", where);
    layers.backward_s.push_back(number(layer, "backward_s", where));
    layers.bytes.push_back(to_bytes(number(layer, "parameter_bytes", where), where));
  }
  return layers;
}

/// A node of PipeDream's graph.
struct Node {
  int number = 0;                   ///< of its name, node12
  bool input = false;               ///< of the program, not a layer
  std::array<double, 3> numbers{};  ///< forward ms, backward ms, parameter bytes
  std::vector<std::string> next{};
  int inputs = 0;
};

/// Nodes `node1 -- Conv2d(...) -- forward_compute_time=1.0, ...` and edges `node1 -- node2`, the
/// latter indented. Layers come in the order of the edges, ties by number; inputs are no layers.
Layers from_graph(std::string const& text, std::string const& source) {
  constexpr std::array<std::string_view, 3> keys{
      "forward_compute_time=", "backward_compute_time=", "parameter_size="};
  std::map<std::string, std::size_t> index;
  std::vector<Node> nodes;
  std::vector<std::pair<std::size_t, std::string>> edges;  // of (position in the file, its target)
  std::vector<std::size_t> edge_from;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    std::size_t const indent = std::min(line.find_first_not_of(" \t"), line.size());
    bool const edge = indent > 0;
    line.remove_prefix(indent);
    line = line.substr(0, line.find_last_not_of(" \t") + 1);
    std::size_t const dash = line.find(" -- ");
    auto const refuse = [&](std::size_t at, char const* why) {
      bad_data(source + place(text, begin + indent + at) + why);
    };
    if (dash == std::string_view::npos) {
      if (!line.empty()) refuse(0, "is neither a node nor an edge of PipeDream's graph");
    } else if (edge) {
      auto const from = index.find(std::string(line.substr(0, dash)));
      if (from == index.end()) refuse(0, "is an edge from a node that is not there");
      edge_from.push_back(from->second);
      edges.emplace_back(begin + indent + dash + 4, std::string(line.substr(dash + 4)));
    } else {
      if (!index.emplace(std::string(line.substr(0, dash)), nodes.size()).second) {
        refuse(0, "is a node for the second time");
      }
      Node node;
      std::size_t const digits = std::min(line.find_first_of("0123456789"), dash);
      std::from_chars(line.data() + digits, line.data() + dash, node.number);
      node.input = line.substr(dash + 4).starts_with("Input");
      for (std::size_t k = 0; k < keys.size(); ++k) {
        std::size_t const at = line.find(keys[k]);
        if (at == std::string_view::npos) refuse(0, "is a node without its times and sizes");
        std::string_view value = line.substr(at + keys[k].size());
        std::size_t const value_at = at + keys[k].size();
        if (value.starts_with('[')) {  // sizes of several tensors, with semicolons between them
          value.remove_prefix(1);
        }
        for (bool more = true; more;) {
          double one = 0;
          auto const [stop, error] =
              std::from_chars(value.data(), value.data() + value.size(), one);
          if (error != std::errc{} || !(one >= 0) || !(one <= 1e300)) {
            refuse(value_at, "is not a finite number that is not negative");
          }
          node.numbers[k] += one;
          value.remove_prefix(static_cast<std::size_t>(stop - value.data()));
          more = value.starts_with("; ") || value.starts_with(';');
          while (value.starts_with(';') || (more && value.starts_with(' '))) value.remove_prefix(1);
        }
      }
      nodes.push_back(node);
    }
    begin = end + 1;
  }
  if (nodes.empty()) bad_data(source + " holds no layer");
  for (std::size_t e = 0; e < edges.size(); ++e) {
    auto const to = index.find(edges[e].second);
    if (to == index.end()) {
      bad_data(source + place(text, edges[e].first) + "is an edge to a node that is not there");
    }
    nodes[edge_from[e]].next.push_back(edges[e].second);
    ++nodes[to->second].inputs;
  }
  std::set<std::pair<int, std::size_t>> ready;  // by number
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].inputs == 0) ready.emplace(nodes[i].number, i);
  }
  Layers layers;
  std::size_t taken = 0;
  while (!ready.empty()) {
    Node const& node = nodes[ready.begin()->second];
    ready.erase(ready.begin());
    ++taken;
    if (!node.input) {
      layers.forward_s += node.numbers[0] * 1e-3;
      layers.backward_s.push_back(node.numbers[1] * 1e-3);
      layers.bytes.push_back(to_bytes(node.numbers[2], source));
    }
    for (auto const& name : node.next) {
      std::size_t const to = index[name];
      if (--nodes[to].inputs == 0) ready.emplace(nodes[to].number, to);
    }
  }
  if (taken != nodes.size()) bad_data(source + " has edges that run in a circle");
  return layers;
}

}  // namespace

nlohmann::json read_json(std::string const& path) {
  return parse(read_file(path), source_name(path));
}

Layers read_layers(std::string const& path) {
  std::string const text = read_file(path);
  std::size_t const first = text.find_first_not_of(" \t\r\n");
  bool const graph = first != std::string::npos && text[first] != '{' && text[first] != '[' &&
                     text.find(" -- ") != std::string::npos;
  return graph ? from_graph(text, source_name(path)) : from_json(text, source_name(path));
}

}  // namespace tool
