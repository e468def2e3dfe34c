// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <unistd.h>

#include <stagger/core/error.hpp>

#include "catch.hpp"

namespace text_test {

using gpt::Batch;
using gpt::Text;

namespace {

/// A text in which every window of four bytes says where it stands.
std::string numbered(std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; i += 4)
    for (std::size_t b = 0; b < 4; ++b)
      text += static_cast<char>(b == 0 ? 255 : (i / 4) >> (7 * (b - 1)) & 127U);
  text.resize(size);
  return text;
}

Batch batch_of(std::size_t microbatches) {
  Batch batch;
  batch.inputs.resize(microbatches);
  return batch;
}

std::vector<std::string> windows(Batch const& batch) {
  std::vector<std::string> all;
  for (std::size_t m = 0; m < batch.inputs.size(); ++m) {
    auto const& x = batch.inputs[m];
    auto const& y = batch.targets[m];
    REQUIRE(x.extents() == y.extents());
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      std::string window(x.begin() + i * x.extent(1), x.begin() + (i + 1) * x.extent(1));
      REQUIRE(std::equal(window.begin() + 1, window.end(), y.begin() + i * x.extent(1),
                         [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; }));
      window += static_cast<char>(y[(i + 1) * x.extent(1) - 1]);
      all.push_back(window);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("gpt/Text: targets follow inputs, and no byte is both trained on and held out", "[gpt]") {
  for (std::size_t size : {18U, 19U, 40U, 400U, 5000U, 100000U}) {
    INFO(size << " bytes");
    std::size_t const context = 8;
    std::string const bytes = numbered(size);
    Text const text(bytes, context);
    std::set<std::size_t> held, trained;
    auto const collect = [&](Batch const& batch, std::set<std::size_t>& to) {
      for (auto const& window : windows(batch)) {
        std::size_t const at = bytes.find(window);
        REQUIRE(at != std::string::npos);
        for (std::size_t i = 0; i <= context; ++i) to.insert(at + i);
      }
    };
    Batch batch = batch_of(3);
    text.held_out(300, batch);
    collect(batch, held);
    for (std::int64_t step = 0; step < 30; ++step) {
      text.draw(1, step, 100, batch);
      collect(batch, trained);
    }
    std::vector<std::size_t> both;
    std::set_intersection(held.begin(), held.end(), trained.begin(), trained.end(),
                          std::back_inserter(both));
    CHECK(both.empty());
    if (size >= 400 && size <= 5000) {
      CHECK(trained.size() > size * 8 / 10);
      CHECK(held.size() > size / 20);
    }
  }
}

TEST_CASE(
    "gpt/Text: a step's windows depend on seed and step alone, not on microbatches or earlier "
    "steps",
    "[gpt]") {
  Text const text(numbered(20000), 16);
  Batch one = batch_of(1), three = batch_of(3);
  text.draw(5, 9, 32, one);
  auto const expected = windows(one);
  text.draw(5, 3, 32, three);
  CHECK(windows(three) != expected);
  text.draw(6, 9, 32, three);
  CHECK(windows(three) != expected);
  text.draw(5, 9, 32, three);
  CHECK(windows(three) == expected);
  CHECK(three.inputs[0].extent(0) == 11);
  CHECK(three.inputs[1].extent(0) == 11);
  CHECK(three.inputs[2].extent(0) == 10);
}

TEST_CASE("gpt/Text: every window of the training text can be drawn, each about as often",
          "[gpt]") {
  std::string const bytes = numbered(1200);
  Text const text(bytes, 4);
  std::map<std::size_t, int> drawn;
  Batch batch = batch_of(1);
  for (std::int64_t step = 0; step < 100; ++step) {
    text.draw(1, step, 1000, batch);
    for (auto const& window : windows(batch)) ++drawn[bytes.find(window)];
  }
  REQUIRE(drawn.size() > 900);
  double const mean = 100000.0 / static_cast<double>(drawn.size());
  for (auto const& [at, times] : drawn) {
    INFO("window at " << at);
    CHECK(times > mean - 6 * std::sqrt(mean));
    CHECK(times < mean + 6 * std::sqrt(mean));
  }
}

TEST_CASE("gpt/Text: empty, short and missing text is refused with what would do", "[gpt]") {
  CHECK_THROWS_WITH(Text("", 8), Catch::Contains("is empty") && Catch::Contains("--text"));
  CHECK_THROWS_WITH(Text(numbered(17), 8), Catch::Contains("17 bytes") && Catch::Contains("18") &&
                                               Catch::Contains("--context 8"));
  CHECK_NOTHROW(Text(numbered(18), 8));
  CHECK_THROWS_WITH(Text::read({"/no/such/file"}), Catch::Contains("'/no/such/file'"));
  CHECK_THROWS_WITH(Text::read({std::filesystem::temp_directory_path().string()}),
                    Catch::Contains("cannot read"));
  CHECK(Text(numbered(100), 8).fingerprint() != Text(numbered(101), 8).fingerprint());
}

TEST_CASE("gpt/Text: a mark of UTF-8 in front of a file is no text", "[gpt]") {
  namespace fs = std::filesystem;
  auto const root = fs::temp_directory_path() / ("stagger_gpt_mark_" + std::to_string(::getpid()));
  fs::create_directories(root);
  auto const first = (root / "first").string();
  auto const second = (root / "second").string();
  auto const third = (root / "third").string();
  std::ofstream(first, std::ios::binary) << "\xEF\xBB\xBFone ";
  std::ofstream(second, std::ios::binary) << "two \xEF\xBB\xBF";
  std::ofstream(third, std::ios::binary) << "\xEF\xBB\xBF";
  CHECK(gpt::Text::read({first, second, third}) == "one two \xEF\xBB\xBF");
  fs::remove_all(root);
}

TEST_CASE("gpt/own_files: headers and documents, found from below the sources as well", "[gpt]") {
  namespace fs = std::filesystem;
  auto const root = fs::temp_directory_path() / ("stagger-own-files-" + std::to_string(::getpid()));
  fs::remove_all(root);
  fs::create_directories(root / "include" / "stagger" / "core");
  fs::create_directories(root / "build" / "deep");
  for (char const* const name :
       {"README.md", "include/stagger/stagger.hpp", "include/stagger/core/a.hpp", "notes.txt"})
    std::ofstream(root / name) << name;
  auto const expected = std::vector<std::string>{(root / "README.md").string(),
                                                 (root / "include/stagger/core/a.hpp").string(),
                                                 (root / "include/stagger/stagger.hpp").string()};
  CHECK(gpt::own_files(root.string()) == expected);
  auto const before = fs::current_path();
  fs::current_path(root / "build" / "deep");
  CHECK(gpt::own_files("/no/such/folder") == expected);
  fs::current_path("/");
  CHECK_THROWS_WITH(gpt::own_files("/no/such/folder"), Catch::Contains("--text FILE"));
  fs::current_path(before);
  fs::remove_all(root);
}

}  // namespace text_test
