// SPDX-License-Identifier: Apache-2.0
#include <stagger/cluster/graph_txt.hpp>

#include <string>
#include <vector>

#include "catch.hpp"

namespace graph_txt_test {

using stagger::cluster::is_graph_txt;
using stagger::cluster::read_graph_txt;

namespace {

std::string node(int number, std::string const& what, std::string const& activation = "1.0",
                 std::string const& parameters = "0.000") {
  return "node" + std::to_string(number) + " -- " + what +
         " -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=" +
         activation + ", parameter_size=" + parameters + "\n";
}

std::string edge(int from, int to) {
  return "\tnode" + std::to_string(from) + " -- node" + std::to_string(to) + "\n";
}

std::vector<std::uint64_t> boundaries(std::string const& text) {
  std::vector<std::uint64_t> bytes;
  for (auto const& layer : read_graph_txt(text, "graph.txt", 1).layers)
    bytes.push_back(layer.activation_bytes);
  return bytes;
}

}  // namespace

TEST_CASE("cluster/read_graph_txt: layers come in the order of the edges, times in seconds",
          "[cluster]") {
  auto const p = read_graph_txt(
      node(10, "Linear(a, b=1)", "5.0", "7.000") + node(2, "ReLU(in=1, x)", "[3.0; 4.0]") +
          node(1, "Input0", "100.0") + edge(1, 2) + "  node2 -- node10  \n",
      "graph.txt", 1);
  REQUIRE(p.layers.size() == 2);
  CHECK(p.layers[0].name == "ReLU(in=1, x)");
  CHECK(p.layers[0].forward_s == 0.001);
  CHECK(p.layers[0].backward_s == 0.002);
  CHECK(p.layers[0].activation_bytes == 7);  // several outputs; their sum
  CHECK(p.layers[1].name == "Linear(a, b=1)");
  CHECK(p.layers[1].parameter_bytes == 7);
  CHECK(p.layers[1].activation_bytes == 5);
}

TEST_CASE("cluster/read_graph_txt: a boundary carries each tensor that crosses it, once",
          "[cluster]") {
  // 1 feeds 2, 3 and 4; 2 and 3 meet in 4: after 2 both 1 and 2 are under way.
  std::string const diamond = node(1, "a", "100.0") + node(2, "b", "10.0") + node(3, "c", "1.0") +
                              node(4, "d", "7.0") + edge(1, 2) + edge(1, 3) + edge(1, 4) +
                              edge(2, 4) + edge(3, 4);
  CHECK(boundaries(diamond) == std::vector<std::uint64_t>{100, 110, 111, 7});
  // Unused pieces of a tuple are no results, and what an input sends is not charged.
  std::string const tuple = node(1, "Input0", "1000.0") + node(2, "LSTM", "5.0") +
                            node(3, "__getitem__(0)", "3.0") + node(4, "__getitem__(1)", "2.0") +
                            node(5, "e", "1.0") + edge(1, 2) + edge(1, 5) + edge(2, 3) +
                            edge(2, 4) + edge(3, 5);
  CHECK(boundaries(tuple) == std::vector<std::uint64_t>{5, 8, 3, 1});
}

TEST_CASE("cluster/read_graph_txt: what cannot be put in one line is refused by line and value",
          "[cluster]") {
  std::string const two = node(1, "a") + node(2, "b");
  auto const refused = [](std::string const& text, std::string const& words) {
    CAPTURE(text);
    CHECK_THROWS_WITH(read_graph_txt(text, "g.txt", 1), Catch::Contains(words));
  };
  refused(two + edge(1, 2) + edge(2, 1),
          "g.txt, line 3, column 1: 'node1 -- node2' is an edge of a cycle");
  refused(two + edge(1, 2) + edge(2, 2),
          "line 4, column 1: 'node2 -- node2' is an edge of a cycle");
  refused(two + edge(1, 3), "g.txt, line 3, column 11: 'node3' ends an edge but is no node");
  refused(two + edge(3, 1), "g.txt, line 3, column 2: 'node3' begins an edge but is no node");
  refused(two + two, "line 3, column 1: 'node1' is a node for the second time");
  refused("what\n", "g.txt, line 1, column 1: 'what' is neither a node nor an edge");
  refused("node1 -- a\n", "'node1' is a node without its times");
  refused("node1 -- a -- forward_compute_time=1.0\n", "without backward_compute_time");
  refused(node(1, "a", "-3.0"), "'-3.0' is the activation_size of node1; give a finite number");
  refused(node(1, "a", "nan"), "'nan' is the activation_size of node1");
  refused(node(1, "a", "inf"), "'inf' is the activation_size of node1");
  refused(node(1, "a", "1.0x"), "'1.0x' is the activation_size");
  refused(node(1, "a", "[1.0; "), "is the activation_size");
  refused(node(1, "a", "1.0", "1e17"), "parameter_size = 1e+17");
  refused(node(1, "Input"), "holds inputs but no layer");
  refused("", "holds no layer");
  CHECK_THROWS_WITH(read_graph_txt(two, "g.txt", 0),
                    "the batch that g.txt was profiled with is given as 0; give 1 sample or more");
}

TEST_CASE("cluster/read_graph_txt: a branch that never joins the others is left out with a warning",
          "[cluster]") {
  auto const names = [](stagger::cluster::Profile const& p) {
    std::string all;
    for (auto const& layer : p.layers) all += layer.name;
    return all;
  };
  // a feeds b and x; x, y end an auxiliary head, which is listed first or last.
  for (bool const last : {false, true}) {
    int const x = last ? 8 : 2;
    std::string const text = node(1, "a", "9.0") + node(x, "x", "4.0") + node(x + 1, "y") +
                             node(5, "b") + node(6, "c") + node(7, "d", "3.0") + edge(1, x) +
                             edge(x, x + 1) + edge(1, 5) + edge(5, 6) + edge(6, 7);
    auto const p = read_graph_txt(text, "g.txt", 32);
    CAPTURE(last);
    CHECK(names(p) == "abcd");
    CHECK(p.batch == 32);
    CHECK(p.layers[0].activation_bytes == 9);  // read by b; the head does not carry it on
    CHECK(p.layers[1].activation_bytes == 1);
    CHECK(p.layers[3].activation_bytes == 3);
    REQUIRE(p.warnings.size() == 1);
    CHECK(p.warnings[0] ==
          "node" + std::to_string(x + 1) +
              " of line 3 ends a branch that never joins that of node7 of line 6; left out of the "
              "chain: 2 layers of 0.006 s");
    CHECK(stagger::cluster::doubts(p) == p.warnings);
  }
  // Of branches that are equally long, the last; pieces of a tuple are no branches.
  auto const equal = read_graph_txt(node(1, "a") + node(2, "b") + node(3, "__getitem__(1)") +
                                        node(4, "c") + edge(1, 2) + edge(1, 3) + edge(1, 4),
                                    "g.txt", 1);
  CHECK(names(equal) == "a__getitem__(1)c");
  // A piece goes with the layer that makes its tuple; what two branches share is counted once.
  auto const shared = read_graph_txt(node(1, "a") + node(2, "s") + node(3, "x") + node(4, "y") +
                                         node(5, "__getitem__(0)") + node(6, "b") + node(7, "c") +
                                         node(8, "d") + edge(1, 2) + edge(2, 3) + edge(2, 4) +
                                         edge(2, 5) + edge(1, 6) + edge(6, 7) + edge(7, 8),
                                     "g.txt", 1);
  CHECK(names(shared) == "abcd");
  REQUIRE(shared.warnings.size() == 2);
  CHECK_THAT(shared.warnings[0], Catch::Contains("node3 of") && Catch::Contains(": 3 layers of"));
  CHECK_THAT(shared.warnings[1], Catch::Contains("node4 of") && Catch::Contains(": 1 layer of"));
  CHECK(read_graph_txt(node(1, "a") + node(2, "b"), "g.txt", 1).warnings.size() == 1);
}

TEST_CASE("cluster/read_graph_txt: a byte order mark and CRLF change nothing", "[cluster]") {
  std::string const text = node(1, "a") + node(2, "b") + edge(1, 2);
  std::string marked = "\xEF\xBB\xBF" + text;
  for (std::size_t at = 0; (at = marked.find('\n', at)) != marked.npos; at += 2)
    marked.replace(at, 1, "\r\n");
  CHECK(is_graph_txt(marked));
  CHECK(read_graph_txt(marked, "g.txt", 1) == read_graph_txt(text, "g.txt", 1));
  CHECK_THROWS_WITH(read_graph_txt("\xEF\xBB\xBFwhat\n", "g.txt", 1),
                    Catch::Contains("line 1, column 1: 'what'"));
}

TEST_CASE("cluster/is_graph_txt: JSON and graphs are told apart by their beginning", "[cluster]") {
  CHECK(is_graph_txt(node(1, "a")));
  CHECK_FALSE(is_graph_txt("{\"name\": \"a -- b\"}"));
  CHECK_FALSE(is_graph_txt(""));
  CHECK_FALSE(is_graph_txt("something else"));
}

}  // namespace graph_txt_test
