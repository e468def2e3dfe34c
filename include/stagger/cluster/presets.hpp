// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The clusters of published experiments, by name.
/// @source S. Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models",
///         PPoPP 2021, table III; J. H. Park et al., "HetPipe", USENIX ATC 2020, table 1.

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <stagger/cluster/cluster.hpp>
#include <stagger/core/error.hpp>

namespace stagger::cluster {

namespace detail {

inline constexpr double ethernet_25 = 3.125e9;
inline constexpr double ethernet_10 = 1.25e9;

[[nodiscard]] inline Cluster v100s(std::string name, int servers, int each, double inter) {
  Cluster result{.name = std::move(name), .inter = {.bytes_per_s = inter}};
  Link nvlink{.bytes_per_s = 25e9, .all_reduce_bytes_per_s = {0, 0}};
  for (int r = 2; r <= (each < 2 ? 2 : each); ++r)
    nvlink.all_reduce_bytes_per_s.push_back(25e9 * (r / 2));
  for (int s = 0; s < servers; ++s) {
    result.intra.push_back(nvlink);
    for (int d = 0; d < each; ++d)
      result.devices.push_back({.kind = "V100", .memory_bytes = 16'000'000'000, .node = s});
  }
  return result;
}

}  // namespace detail

/// DAPPLE's configuration A: servers of several V100s (16 GB) on NVLink, 25 GbE between them. An
/// all-reduce inside a server uses floor(r / 2) pairs at once.
[[nodiscard]] inline Cluster dapple_a(int servers, int each) {
  return detail::v100s(text("dapple-a:", servers, "x", each), servers, each, detail::ethernet_25);
}

/// DAPPLE's configuration B: servers of one V100, 25 GbE.
[[nodiscard]] inline Cluster dapple_b(int servers) {
  return detail::v100s(text("dapple-b:", servers), servers, 1, detail::ethernet_25);
}

/// DAPPLE's configuration C: servers of one V100, 10 GbE.
[[nodiscard]] inline Cluster dapple_c(int servers) {
  return detail::v100s(text("dapple-c:", servers), servers, 1, detail::ethernet_10);
}

/// HetPipe's four nodes of four equal GPUs: TITAN V, TITAN RTX, RTX 2060, Quadro P4000. Speeds are
/// cores times clock, relative to the TITAN V. Links have the rates that the paper's fabric reaches
/// in practice: 10 GB/s in a node; between nodes, 3 GB/s, and 1.1 GB/s for an all-reduce.
[[nodiscard]] inline Cluster hetpipe() {
  struct Kind {
    char const* name;
    double cores_mhz;
    std::uint64_t memory_bytes;
  };
  std::array<Kind, 4> const kinds{{{"V", 5120.0 * 1455, 12'000'000'000},
                                   {"R", 4608.0 * 1770, 24'000'000'000},
                                   {"G", 1920.0 * 1680, 6'000'000'000},
                                   {"Q", 1792.0 * 1480, 8'000'000'000}}};
  Cluster result{.name = "hetpipe",
                 .inter = {.bytes_per_s = 3e9, .all_reduce_bytes_per_s = {1.1e9}}};
  for (Kind const& kind : kinds) {
    int const n = result.nodes();
    result.intra.push_back({.bytes_per_s = 10e9});
    for (int d = 0; d < 4; ++d)
      result.devices.push_back({.kind = kind.name,
                                .memory_bytes = kind.memory_bytes,
                                .speed = kind.cores_mhz / kinds[0].cores_mhz,
                                .node = n});
  }
  return result;
}

/// Whether the name is, or looks like, one of the presets: `dapple-a:SxN` (S servers of N),
/// `dapple-b:S`, `dapple-c:S`, `hetpipe`.
[[nodiscard]] inline bool is_preset(std::string_view name) {
  return name == "hetpipe" || name.substr(0, 7) == "dapple-";
}

/// The cluster of that name.
/// @throws Error  bad_configuration naming the forms of the known names
[[nodiscard]] inline Cluster preset(std::string_view name) {
  constexpr int most = 4096;  // devices; a larger number is more likely a typing error
  int servers = 0;
  int each = 1;
  char const* at = name.data();
  char const* const end = name.data() + name.size();
  auto const number = [&](int& value) {
    auto const [stop, error] = std::from_chars(at, end, value);
    bool const good = error == std::errc{} && value >= 1 && value <= most;
    at = stop;
    return good;
  };
  if (name == "hetpipe") return hetpipe();
  bool good = name.size() > 9 && name.substr(0, 7) == "dapple-" && name[8] == ':';
  char const configuration = good ? name[7] : ' ';
  if (good) {
    at += 9;
    good = number(servers);
    if (configuration == 'a') good = good && at != end && *at++ == 'x' && number(each);
    good = good && at == end && servers <= most / each;
  }
  if (good && configuration == 'a') return dapple_a(servers, each);
  if (good && configuration == 'b') return dapple_b(servers);
  if (good && configuration == 'c') return dapple_c(servers);
  raise(Errc::bad_configuration, "there is no cluster '", std::string(name),
        "'; presets are dapple-a:SxN (S servers of N devices), dapple-b:S, dapple-c:S "
        "and hetpipe, with at most ",
        most, " devices");
}

}  // namespace stagger::cluster
