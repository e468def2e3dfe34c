// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A measurement of the cost of passing bytes between two threads of this machine.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/cluster/cluster.hpp>
#include <stagger/collective/line_fit.hpp>
#include <stagger/core/error.hpp>

namespace stagger::host {

/// Measured transfers, the line through them, and a warning where the line does not fit.
struct Probe {
  std::vector<collective::Sample> samples{};  ///< sizes and their median seconds
  collective::LineFit fit{};                  ///< alpha + beta * bytes, and a residual per sample
  std::string warning{};                      ///< empty where the line fits

  [[nodiscard]] cluster::Link link() const {
    return {.alpha_s = fit.line.startup_s, .bytes_per_s = 1 / fit.line.per_byte_s};
  }
};

/// Fits the line, and warns if it does not fit.
/// @throws Error  bad_data as collective::fit_line
[[nodiscard]] inline Probe fitted(std::vector<collective::Sample> samples) {
  Probe probe;
  probe.fit = collective::fit_line(samples);
  std::size_t worst = 0;
  for (std::size_t i = 0; i < samples.size(); ++i)
    if (std::max(probe.fit.residuals[i], -probe.fit.residuals[i]) == probe.fit.worst) worst = i;
  if (!probe.fit.affine())
    probe.warning =
        text("a line does not fit: at ", samples[worst].bytes, " bytes it says ",
             samples[worst].seconds * (1 + probe.fit.residuals[worst]), " s where ",
             samples[worst].seconds, " s were measured; take times near the sizes you send");
  else if (probe.fit.clamped)
    probe.warning =
        "the start-up came out below zero and is taken as zero; measure longer, or on "
        "an idle machine";
  probe.samples = std::move(samples);
  return probe;
}

}  // namespace stagger::host

namespace stagger::host::detail {

/// Two threads that pass a buffer back and forth; the one that has it reads what the other has
/// written, and writes as many bytes itself.
class PingPong {
 public:
  explicit PingPong(std::size_t most) : there_(most), back_(most), mine_(most), its_(most) {
    other_ = std::thread([this] { echo(); });
  }
  PingPong(PingPong const&) = delete;
  PingPong& operator=(PingPong const&) = delete;
  ~PingPong() {
    bytes_ = 0;
    passes_.fetch_add(1, std::memory_order_release);
    other_.join();
  }

  /// Seconds of one way.
  [[nodiscard]] double one_way_s(std::size_t bytes) {
    auto const begin = std::chrono::steady_clock::now();
    bytes_ = bytes;
    std::memcpy(there_.data(), mine_.data(), bytes);
    unsigned const pass = passes_.fetch_add(1, std::memory_order_release) + 1;
    wait_for(pass + 1);
    std::memcpy(mine_.data(), back_.data(), bytes);
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
    return took.count() / 2;
  }

 private:
  void wait_for(unsigned pass) const {
    while (passes_.load(std::memory_order_acquire) != pass) std::this_thread::yield();
  }
  void echo() {
    for (unsigned pass = 1;; pass += 2) {
      wait_for(pass);
      if (bytes_ == 0) return;
      std::memcpy(its_.data(), there_.data(), bytes_);
      std::memcpy(back_.data(), its_.data(), bytes_);
      passes_.fetch_add(1, std::memory_order_release);
    }
  }

  std::vector<char> there_, back_, mine_, its_;
  std::size_t bytes_ = 0;  // handed over with the pass
  std::atomic<unsigned> passes_{0};
  std::thread other_{};
};

}  // namespace stagger::host::detail

namespace stagger::host {

/// Passes messages of 1 KiB to 4 MiB between two threads and fits alpha and beta. Each size gets an
/// equal share of the time: one warm-up pass and at least three that count.
/// @param  seconds  about how long to measure, > 0
/// @throws Error    bad_configuration for a time that is not above zero; bad_data where the machine
///                  is so busy that larger messages were not slower
[[nodiscard]] inline Probe probe(double seconds = 2) {
  constexpr std::array<std::size_t, 7> sizes{1U << 10, 1U << 12, 1U << 14, 1U << 16,
                                             1U << 18, 1U << 20, 1U << 22};
  if (!(seconds > 0 && seconds <= 3600))
    raise(Errc::bad_configuration, "probing for ", seconds,
          " s measures nothing; give 0 to 3600, such as 2");
  detail::PingPong pair(sizes.back());
  std::vector<collective::Sample> samples;
  for (std::size_t const bytes : sizes) {
    (void)pair.one_way_s(bytes);
    std::vector<double> times;
    for (double spent = 0;
         times.size() < 3 || (spent < seconds / sizes.size() && times.size() < 100000);
         spent += 2 * times.back())
      times.push_back(pair.one_way_s(bytes));
    auto const middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    samples.push_back({bytes, *middle});
  }
  return fitted(std::move(samples));
}

/// This machine as a cluster of one node: one device for each thread, which share the memory and
/// are connected by the measured link.
/// @param  threads  devices, >= 1
[[nodiscard]] inline cluster::Cluster this_machine(
    Probe const& measured,
    int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))) {
  if (threads < 1)
    raise(Errc::bad_configuration, "a machine of ", threads,
          " threads cannot be probed; use 1 or more");
  long const pages = sysconf(_SC_PHYS_PAGES);
  long const page = sysconf(_SC_PAGESIZE);
  std::uint64_t const memory =
      pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page)
                            : std::uint64_t{1} << 30;
  cluster::Cluster result{
      .name = "this machine", .devices = {}, .intra = {measured.link()}, .inter = {}};
  result.devices.assign(
      static_cast<std::size_t>(threads),
      {.kind = "thread", .memory_bytes = memory / static_cast<std::uint64_t>(threads)});
  return result;
}

}  // namespace stagger::host
