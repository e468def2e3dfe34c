// SPDX-License-Identifier: Apache-2.0
// json_profile_fuzz [COUNT [SEED]]: COUNT mutated profile, graph and cluster files (default 10^6)
// through their readers. A file is read, or refused by a stagger::Error that names it; anything
// else ends the program. What was read is legal and comes back from what is written.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/cluster/presets.hpp>
#include <stagger/core/error.hpp>
#include <stagger/json/cluster.hpp>
#include <stagger/json/profile.hpp>

namespace {

namespace cluster = stagger::cluster;
namespace json = stagger::json;
using Random = std::mt19937_64;

constexpr std::string_view pieces[] = {"0",
                                       "1",
                                       "-1",
                                       "1e308",
                                       "1e999",
                                       "-0.0",
                                       "4096",
                                       "2147483648",
                                       "18446744073709551616",
                                       "null",
                                       "true",
                                       "[",
                                       "]",
                                       "{",
                                       "}",
                                       "\"",
                                       ",",
                                       ":",
                                       ";",
                                       "\n",
                                       "\t",
                                       " ",
                                       " -- ",
                                       "node1",
                                       "node2",
                                       "node9",
                                       "Input",
                                       "nan",
                                       "inf",
                                       "\xff",
                                       "\\u0000",
                                       "\"batch\":",
                                       "\"count\":",
                                       "\"layers\":",
                                       "=",
                                       ".",
                                       "__getitem__",
                                       "\r\n",
                                       "{\"a\":1}",
                                       "forward_compute_time=",
                                       "\"intra\":"};

std::vector<std::string> seeds() {
  cluster::Profile profile{
      .name = "p",
      .batch = 2,
      .device = "V",
      .layers = {{.name = "a", .forward_s = 1, .backward_s = 2, .activation_bytes = 3},
                 {.name = "b",
                  .forward_s = 0.25,
                  .backward_s = 2,
                  .backward_weight_s = 1,
                  .parameter_bytes = 7,
                  .stash_bytes = 5,
                  .by_device = {{"G", 1, 2, {}}}}}};
  std::string const meta =
      " -- forward_compute_time=1.000, backward_compute_time=2.500, activation_size=[3.0; 1.0], "
      "parameter_size=4.000\n";
  return {json::write_profile(profile),
          json::write_cluster(cluster::preset("dapple-a:2x2")),
          json::write_cluster(cluster::preset("hetpipe")),
          "node1 -- Input0" + meta + "node2 -- Conv(a, b=1)" + meta + "node3 -- ReLU" + meta +
              "node4 -- Add" + meta +
              "\tnode1 -- node2\n\tnode2 -- node3\n\tnode2 -- node4\n  node3 -- node4\n",
          "node1 -- a" + meta,
          "{}",
          ""};
}

std::string mutated(std::string text, Random& random) {
  auto const below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  for (std::size_t left = 1 + below(4); left > 0; --left) {
    std::size_t const at = below(text.size() + 1);
    std::size_t const length = below(1 + std::min<std::size_t>(text.size() - at, 24));
    switch (below(6)) {
      case 0:
        text.insert(at, pieces[below(std::size(pieces))]);
        break;
      case 1:
        text.replace(at, length, pieces[below(std::size(pieces))]);
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(below(text.size() + 1), text.substr(at, length));
        break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      default:
        if (below(8) == 0) text.resize(at);
    }
  }
  return text;
}

/// Ends the program with the file that showed the fault.
[[noreturn]] void fail(char const* what, std::string const& text) {
  std::fprintf(stderr, "json_profile_fuzz: %s; the file is:\n%s\n", what, text.c_str());
  std::exit(1);
}

void refused(stagger::Error const& error, std::string const& text) {
  if (error.code() != stagger::Errc::bad_data) fail(error.what(), text);
  if (std::string_view(error.what()).substr(0, 4) != "fuzz") fail(error.what(), text);
}

/// True if the file was read.
bool profile(std::string const& text) {
  cluster::Profile read;
  try {
    read = json::read_any_profile(text, "fuzz");
  } catch (stagger::Error const& error) {
    refused(error, text);
    return false;
  }
  cluster::require_profile(read);
  // Names that are no UTF-8 change in the writing, once.
  cluster::Profile const once = json::read_profile(json::write_profile(read), "fuzz");
  if (once.size() != read.size()) fail("layers are lost in writing", text);
  if (json::read_profile(json::write_profile(once), "fuzz") != once)
    fail("a written profile reads as another", text);
  return true;
}

bool devices(std::string const& text) {
  cluster::Cluster read;
  try {
    read = json::read_cluster(text, "fuzz");
  } catch (stagger::Error const& error) {
    refused(error, text);
    return false;
  }
  cluster::require_cluster(read);
  if (json::read_cluster(json::write_cluster(read), "fuzz") != read)
    fail("a written cluster reads as another", text);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  long long const count = argc > 1 ? std::atoll(argv[1]) : 1000000;
  unsigned long long const seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  if (count < 1) {
    std::fputs("json_profile_fuzz: give a COUNT of 1 or more\n", stderr);
    return 2;
  }
  Random random(seed);
  auto const from = seeds();
  long long profiles = 0, clusters = 0;
  std::string text;
  try {
    for (long long i = 0; i < count; ++i) {
      text = mutated(from[random() % from.size()], random);
      profiles += profile(text) ? 1 : 0;
      clusters += devices(text) ? 1 : 0;
    }
  } catch (std::exception const& error) {
    fail(error.what(), text);
  }
  std::printf("%lld files with seed %llu: %lld profiles, %lld clusters read\n", count, seed,
              profiles, clusters);
  return profiles > 0 && clusters > 0 && profiles + clusters < count ? 0 : 1;
}
