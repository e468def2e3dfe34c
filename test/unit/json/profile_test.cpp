// SPDX-License-Identifier: Apache-2.0
#include <stagger/json/profile.hpp>

#include <cmath>
#include <cstdlib>
#include <string>

#include "catch.hpp"

namespace profile_test {

namespace json = stagger::json;
using stagger::cluster::Profile;

namespace {

std::string const layer =
    R"({"name": "a", "forward_s": 1, "backward_s": 2.5, "activation_bytes": 3, "parameter_bytes": 4})";

std::string profile(std::string const& layers, std::string const& batch = "8") {
  return "{\"name\": \"n\", \"batch\": " + batch + ", \"device\": \"V\", \"layers\": [\n" + layers +
         "\n]}";
}

/// The layer with one field written otherwise.
std::string with(std::string const& field, std::string const& value) {
  std::string text = layer;
  std::size_t const at = text.find("\"" + field + "\": ") + field.size() + 4;
  std::size_t const end = text.find_first_of(",}", at);
  return text.replace(at, end - at, value);
}

}  // namespace

TEST_CASE("json/read_profile: every field arrives, unknown ones are ignored", "[json]") {
  Profile const p = json::read_profile(
      R"({"meta": {"x": [1]}, "layers": [{"name": "a", "forward_s": 1, "backward_s": 2.5,
      "activation_bytes": 3, "parameter_bytes": 4.4, "backward_weight_s": 0.5, "stash_bytes": 9,
      "by_device": {"G": {"forward_s": 7, "backward_s": 8}}, "more": null}], "batch": 8,
      "name": "n", "device": "V"})",
      "p.json");
  CHECK(p.name == "n");
  CHECK(p.batch == 8);
  CHECK(p.device == "V");
  REQUIRE(p.layers.size() == 1);
  CHECK(p.layers[0].backward_s == 2.5);
  CHECK(p.layers[0].backward_weight_s == 0.5);
  CHECK(p.layers[0].parameter_bytes == 4);
  CHECK(p.layers[0].stash() == 9);
  CHECK(p.layers[0].on("G", 3).forward_s == 7);
}

TEST_CASE("json/write_profile: what is written reads back as the same profile", "[json]") {
  Profile p{.name = "a \"b\" \n c", .batch = 3, .device = "V", .layers = {}};
  for (int i = 0; i < 20; ++i) {
    p.layers.push_back({.name = "layer " + std::to_string(i),
                        .forward_s = std::sqrt(i) * 1e-3,
                        .backward_s = std::exp(-i),
                        .activation_bytes = std::uint64_t{1} << (2 * i),
                        .parameter_bytes = static_cast<std::uint64_t>(i)});
    if (i % 2) p.layers.back().backward_weight_s = p.layers.back().backward_s / 3;
    if (i % 3) p.layers.back().stash_bytes = 12345;
    if (i % 4) p.layers.back().by_device = {{"G", 0.1 * i, 0.2, {}}, {"Q", 0.3, 0.4, 0.1}};
  }
  std::string const text = json::write_profile(p);
  CHECK(json::read_profile(text, "p.json") == p);
  CHECK(json::write_profile(json::read_profile(text, "p.json")) == text);
  p.layers[0].name = "\xff";  // no UTF-8
  CHECK_NOTHROW(json::read_profile(json::write_profile(p), "p.json"));
}

TEST_CASE("json/read_profile: what is wrong is named by file, line, field and value", "[json]") {
  auto const refused = [](std::string const& text, std::string const& words) {
    CAPTURE(text);
    CHECK_THROWS_WITH(json::read_profile(text, "p.json"), Catch::Contains(words));
  };
  std::string const good = layer + ",\n";
  REQUIRE_NOTHROW(json::read_profile(profile(good + layer), "p.json"));
  refused(profile(good + with("forward_s", "-1")),
          "p.json, line 3: layers[1].forward_s is -1; give a finite number that is not negative");
  refused(profile(good + with("backward_s", "\"2\"")), "line 3: layers[1].backward_s is \"2\"");
  refused(profile(good + with("activation_bytes", "null")), "layers[1].activation_bytes is null");
  refused(profile(good + with("parameter_bytes", "1e16")), "less than 9e15 bytes");
  refused(profile(good + with("name", "7")), "line 3: layers[1].name is 7; give a text");
  refused(profile(good + with("forward_s", "1e999")), "p.json, line 3, column 28: '1e999, ");
  refused(profile(good + with("forward_s", "NaN")), "p.json, line 3, column 28: 'NaN, ");
  refused(profile(good + "7"), "line 3: layers[1] is 7; give an object");
  refused(profile(good + R"({"forward_s": 1})"), "line 3: layers[1] has no 'backward_s'");
  refused(profile(good + R"({"forward_s": 1, "backward_s": 1, "parameter_bytes": 1})"),
          "line 3: layers[1] has no 'activation_bytes'");
  refused(profile(layer, "0"), "line 1: batch is 0; give a whole number from 1");
  refused(profile(layer, "1.5"), "line 1: batch is 1.5");
  refused(profile(""), "line 1: layers is []; give one or more layers");
  refused("{\n\"layers\": 3,\n\"batch\": 1}", "p.json, line 2: layers is 3; give a list");
  refused("{\"layers\": [" + layer + "]}", "p.json, line 1: the file has no 'batch'");
  refused("[]", "p.json is no profile");
  refused("{\"layers\": [\n {,", "p.json, line 2, column 3: ',' is not JSON here");
  refused("{\"layers\": [", "is where the file ends too early");
  refused("", "is where the file ends too early");
  std::string weight = with("backward_s", "1, \"backward_weight_s\": 2");
  refused(profile(weight),
          "layers[0].backward_weight_s is 2, more than its layer's backward_s = 1");
}

TEST_CASE("json/read_profile: lists of any depth and size end in one short sentence", "[json]") {
  auto const words = [](std::string const& text) {
    try {
      static_cast<void>(json::read_profile(text, "p.json"));
    } catch (stagger::Error const& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  auto const nested = [](std::size_t depth, std::string const& open, std::string const& close) {
    std::string text = "{\"batch\": 1,\n\"layers\": ";
    for (std::size_t i = 0; i < depth; ++i) text += open;
    for (std::size_t i = 0; i < depth; ++i) text += close;
    return text + "}";
  };
  CHECK_THAT(
      words(nested(300000, "[", "]")),
      Catch::StartsWith("p.json, line 2, column 210: '[[[[[[[[[[[[[[[[[[[[' is more than 200 "
                        "lists and objects deep; nest fewer within each other"));
  CHECK_THAT(words(nested(300000, "{\"[\\\"\": ", "}")), Catch::Contains("is more than 200"));
  CHECK_THAT(words(nested(200, "[", "]")), Catch::Contains("is more than 200 lists"));
  CHECK_THAT(words(nested(199, "[", "]")),
             Catch::Contains("p.json, line 2: layers[0] is a list of 1 value; give an object"));
  CHECK_THAT(words(profile("[1, 2, 3, 4, 5, 6, 7, 8, 9]")),
             Catch::Contains("layers[0] is a list of 9 values; give an object"));
  CHECK_THAT(words(profile(layer, "{\"a\": {}, \"b\": []}")),
             Catch::Contains("batch is an object of 2 values; give a whole number"));
  // Brackets in texts are none, also behind a quote in them.
  std::string const name = "\"\\\"" + std::string(300, '[') + "\"";
  CHECK(json::read_profile(profile(with("name", name)), "p.json").layers[0].name.size() == 301);
}

TEST_CASE("json/read_profile: a byte order mark and CRLF change neither values nor places",
          "[json]") {
  std::string const text =
      "{\r\n\"layers\": [{\"forward_s\": 1, \"backward_s\": 1, \"parameter_bytes\": ?}]}";
  auto const read = [&](std::string value, char const* mark) {
    return json::read_any_profile(mark + std::string(text).replace(text.find('?'), 1, value),
                                  "p.json", json::ProfileUse::gradients);
  };
  char const* const mark = "\xEF\xBB\xBF";
  CHECK(read("7", mark) == read("7", ""));
  CHECK_THROWS_WITH(read("-7", mark), Catch::StartsWith("p.json, line 2: layers[0].parameter_b"));
  CHECK_THROWS_WITH(read("@", mark), Catch::StartsWith("p.json, line 2, column 65: '@"));
  CHECK_THROWS_WITH(read(std::string("\0@", 2), ""),
                    Catch::StartsWith("p.json, line 2, column 65: '\\x00@"));
}

TEST_CASE("json/read_profile: gradients need neither batch nor activations", "[json]") {
  std::string const text =
      R"({"layers": [{"forward_s": 1, "backward_s": 1, "parameter_bytes": 1}]})";
  CHECK_THROWS(json::read_profile(text, "p.json"));
  CHECK(json::read_profile(text, "p.json", json::ProfileUse::gradients).size() == 1);
}

TEST_CASE("json/read_any_profile: the batch of a graph is asked for where it matters", "[json]") {
  std::string const graph =
      "node1 -- a -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=3.0, "
      "parameter_size=4.0\n";
  CHECK_THROWS_WITH(json::read_any_profile(graph, "g.txt"),
                    "g.txt does not say for how many samples its times and sizes are; give "
                    "read_any_profile the batch that was profiled");
  CHECK(json::read_any_profile(graph, "g.txt", json::ProfileUse::planning, 32).batch == 32);
  CHECK(json::read_any_profile(graph, "g.txt", json::ProfileUse::gradients).size() == 1);
}

TEST_CASE("json/read_any_profile: PipeDream's graphs read as the profiles made from them",
          "[json][profiles]") {
  char const* const folder = std::getenv("STAGGER_PROFILES");
  if (folder == nullptr || *folder == 0) {
    WARN("skipped: STAGGER_PROFILES names no folder with measured profiles");
    return;
  }
  for (std::string const name :
       {"alexnet", "gnmt", "gnmt_large", "resnet50", "squeezenet1_0", "vgg16"}) {
    CAPTURE(name);
    std::string const root = std::string(folder) + "/pipedream";
    auto const from = [&](std::string const& path) {
      return json::read_any_profile(json::read_file(path), path, json::ProfileUse::planning, 1);
    };
    Profile const graph = from(root + "/" + name + ".graph.txt");
    Profile const made = from(root + "-" + name + ".json");
    REQUIRE(graph.size() == made.size());
    for (std::size_t i = 0; i < graph.layers.size(); ++i) {
      CAPTURE(i);
      CHECK(graph.layers[i].name == made.layers[i].name);
      CHECK(graph.layers[i].forward_s == Approx(made.layers[i].forward_s));
      CHECK(graph.layers[i].backward_s == Approx(made.layers[i].backward_s));
      CHECK(graph.layers[i].activation_bytes == made.layers[i].activation_bytes);
      CHECK(graph.layers[i].parameter_bytes == made.layers[i].parameter_bytes);
    }
  }
}

}  // namespace profile_test
