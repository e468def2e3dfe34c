// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/probe.hpp>

#include <cmath>
#include <vector>

#include "catch.hpp"

#include <stagger/host/threads.hpp>  // the two go together, in this order too

namespace probe_test {

namespace host = stagger::host;
using stagger::collective::Sample;

TEST_CASE("host/fitted: transfers on a line give its link and no warning", "[host]") {
  std::vector<Sample> samples;
  for (std::uint64_t bytes = 1024; bytes <= 1U << 22; bytes *= 4)
    samples.push_back({bytes, 2e-6 + static_cast<double>(bytes) / 5e9});
  auto const probe = host::fitted(samples);
  CHECK(probe.warning.empty());
  CHECK(probe.link().alpha_s == Approx(2e-6));
  CHECK(probe.link().bytes_per_s == Approx(5e9));
  REQUIRE(probe.fit.residuals.size() == samples.size());
  for (double const r : probe.fit.residuals) CHECK(std::abs(r) < 1e-9);
}

TEST_CASE("host/fitted: a bend in the line is warned of, with the size where it is worst",
          "[host]") {
  std::vector<Sample> samples;
  for (std::uint64_t bytes = 1024; bytes <= 1U << 22; bytes *= 4)
    samples.push_back({bytes, 2e-6 + static_cast<double>(bytes) / 5e9});
  samples[3].seconds *= 2;
  auto const probe = host::fitted(samples);
  CHECK_THAT(probe.warning, Catch::Contains("a line does not fit: at 65536 bytes"));
  CHECK(probe.samples.size() == samples.size());
}

TEST_CASE("host/probe: measures rising sizes, and the machine as a cluster that is legal",
          "[host]") {
  try {
    auto const probe = host::probe(0.02);
    REQUIRE(probe.samples.size() >= 2);
    for (std::size_t i = 0; i < probe.samples.size(); ++i) {
      CHECK(probe.samples[i].seconds > 0);
      if (i > 0) CHECK(probe.samples[i].bytes > probe.samples[i - 1].bytes);
    }
    auto const cluster = host::this_machine(probe, 3);
    CHECK_NOTHROW(stagger::cluster::require_cluster(cluster));
    CHECK(cluster.size() == 3);
    CHECK(cluster.transfer_s(0, 2, 1e6) ==
          Approx(probe.fit.line.startup_s + 1e6 * probe.fit.line.per_byte_s));
  } catch (stagger::Error const& busy) {  // a machine may be too busy for any line
    CHECK(busy.code() == stagger::Errc::bad_data);
  }
  CHECK_THROWS_WITH(host::probe(0), Catch::Contains("measures nothing"));
  CHECK_THROWS_WITH(host::this_machine({}, 0), Catch::Contains("0 threads"));
}

}  // namespace probe_test
