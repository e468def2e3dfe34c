// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/split_plan.hpp>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "catch.hpp"
#include "report/xml.hpp"

namespace split_plan_test {

TEST_CASE("report/SplitPlan: a table of the layers, with what is exchanged in front of each",
          "[report]") {
  using namespace stagger::partition;
  std::vector<LayerFeatures> const layers{{.parameters = 1728, .values = 4096},
                                          {.inputs = 4096, .outputs = 1024, .parameters = 4194304},
                                          {.element_wise = true},
                                          {.inputs = 1024, .outputs = 10, .parameters = 10240}};
  CHECK(stagger::report::table({plan_split(layers, {.group = 4}), layers}, 1, 16) ==
        "layer  exchange  forward: sent  received  backward: sent  received      features  split "
        "by  operations/element  parameters  activations\n"
        "-----  --------  -------------  --------  --------------  --------  ------------  "
        "--------  ------------------  ----------  -----------\n"
        "0                            -         -               -         -             -  -      "
        "                    -        1728        65536\n"
        "1      modulo           196608    196608          196608    196608  4096 -> 1024  outputs"
        "               2457.6     1048576        16384\n"
        "2                            -         -               -         -          1024  -      "
        "                    -           -        16384\n"
        "3      collect           49152     49152               -         -    1024 -> 10  -      "
        "                 29.7       10240          640\n"
        "loss                         -         -               -         -\n");
}

TEST_CASE("report/SplitPlan: a table says what stays whole though a group was asked for",
          "[report]") {
  using namespace stagger::partition;
  std::vector<LayerFeatures> const layers{{.inputs = 6, .outputs = 12, .parameters = 72},
                                          {.inputs = 12, .outputs = 3, .parameters = 36}};
  auto const notes = [&](SplitRules const& rules) {
    auto const all = stagger::report::table({plan_split(layers, rules), layers}, 0, 2);
    auto const last = all.find("\nloss");
    return all.substr(all.find('\n', last + 1) + 1);
  };
  CHECK(notes({.group = 1, .threshold = 0}).empty());
  CHECK(notes({.group = 3, .threshold = 0}).empty());
  CHECK(notes({.group = 4, .threshold = 0}) ==
        "layer 1 stays whole: it has 3 outputs for 4 members\n");
  CHECK(notes({.group = 4, .threshold = 10}).empty());  // it would not be split in any case
  CHECK(notes({.group = 4}) ==
        "no layer is worth sharing: each rank has the whole model, for rows of its own\n");
  CHECK(notes({.group = 16, .threshold = 0}) ==
        "layer 0 stays whole: it has 12 outputs for 16 members\n"
        "layer 1 stays whole: it has 3 outputs for 16 members\n"
        "no layer is worth sharing: each rank has the whole model, for rows of its own\n");
  std::vector<LayerFeatures> const heads{
      {.inputs = 8, .outputs = 8, .parameters = 256, .hidden = 3, .operations = 100}};
  CHECK(stagger::report::table({plan_split(heads, {.group = 4, .threshold = 0}), heads}, 0, 2)
            .find("layer 0 stays whole: it has 3 hidden parts for 4 members\n") !=
        std::string::npos);
}

TEST_CASE("report/SplitPlan: a picture of one rank and of each member, with what is exchanged",
          "[report]") {
  using namespace stagger::partition;
  std::vector<LayerFeatures> const layers{{.parameters = 1728, .values = 4096},
                                          {.inputs = 4096, .outputs = 11, .parameters = 45056},
                                          {.element_wise = true},
                                          {.inputs = 11, .outputs = 10, .parameters = 110}};
  auto const plan = plan_split(layers, {.group = 2, .threshold = 20});
  auto const root = xml::parse(stagger::report::svg({plan, layers}, 16, {.title = "<both>"}));
  double const width = std::strtod(root.get("width").c_str(), nullptr);
  double const height = std::strtod(root.get("height").c_str(), nullptr);
  struct Box {
    std::string style, above, below;
  };
  std::vector<Box> boxes;
  std::vector<std::string> labels;
  root.each([&](xml::Element const& e) {
    if (e.name == "text") {
      CHECK(std::strtod(e.get("x").c_str(), nullptr) < width);
      CHECK(std::strtod(e.get("y").c_str(), nullptr) < height);
    }
    for (std::size_t i = 0; e.name == "g" && i < e.children.size(); i += 3) {
      REQUIRE(e.children[i].name == "rect");
      boxes.push_back({e.children[i].get("class"), e.children[i + 1].text, e.children[i + 2].text});
    }
    for (auto const& child : e.children)
      if (e.name == "svg" && child.name == "text") labels.push_back(child.text);
  });
  CHECK(std::vector(labels.begin(), labels.end() - 1) ==
        std::vector<std::string>{"<both>", "one rank", "member 0 of 2", "member 1 of 2", "layer 0",
                                 "modulo", "layer 1", "layer 2", "collect", "layer 3"});
  CHECK(labels.back().find("for 16 rows of each member") != std::string::npos);
  auto const expect = [&](std::size_t box, char const* style, char const* above,
                          char const* below) {
    CAPTURE(box);
    REQUIRE(box < boxes.size());
    CHECK(boxes[box].style == style);
    CHECK(boxes[box].above == above);
    CHECK(boxes[box].below == below);
  };
  REQUIRE(boxes.size() == 4 * 3 + 2 * 2);
  expect(0, "whole", "4096", "1.73 k, 65.5 k");
  expect(1, "rows", "4096", "1.73 k, 65.5 k");
  expect(3, "cut", "forward 65.5 k, 65.5 k", "backward 65.5 k, 65.5 k");
  expect(5, "whole", "4096 -> 11", "45.1 k, 176");
  expect(6, "columns", "4096 -> 5", "20.5 k, 160");
  expect(7, "columns", "4096 -> 6", "24.6 k, 192");
  expect(9, "columns", "5", "-, 160");
  expect(11, "cut", "forward 160, 192", "backward -, -");
  expect(14, "whole", "11 -> 10", "110, 320");

  CHECK_THROWS_WITH(stagger::report::svg({.plan = plan}, 16),
                    "a plan for 4 layers does not belong to a chain of 0; give the layers it was "
                    "made for");
  CHECK_THROWS_WITH(stagger::report::svg({plan, layers}, 16, {.width = 300}),
                    "a picture of 2 members has 300 pixels; use a width of at least 356");
}

}  // namespace split_plan_test
