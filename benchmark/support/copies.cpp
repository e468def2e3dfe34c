// SPDX-License-Identifier: Apache-2.0
#include "copies.hpp"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <limits>
#include <thread>

namespace bench {

Copies::Copies(int threads, std::size_t bytes)
    : of_(static_cast<std::size_t>(threads)), bytes_(bytes) {}

double Copies::seconds() {
  std::size_t const n = of_.size();
  std::vector<double> begun(n), ended(n);
  std::barrier together(static_cast<std::ptrdiff_t>(n));
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < n; ++t)
    running.emplace_back([&, t] {
      of_[t].from.assign(bytes_, static_cast<char>(t));
      of_[t].to.resize(bytes_);
      together.arrive_and_wait();
      begun[t] = now_s();
      std::memcpy(of_[t].to.data(), of_[(t + 1) % n].from.data(), bytes_);
      benchmark::ClobberMemory();
      ended[t] = now_s();
    });
  for (auto& thread : running) thread.join();
  return *std::max_element(ended.begin(), ended.end()) -
         *std::min_element(begun.begin(), begun.end());
}

void add_sizes(std::vector<Row>& rows, std::string const& what, std::string const& name,
               int repetitions,
               std::function<void(benchmark::State&, std::size_t)> const& measure) {
  static constexpr int sizes[] = {1, 4, 16, 64};
  auto const of = [name](int mib) { return name + "/MiB:" + std::to_string(mib); };
  for (int const mib : sizes)
    add(of(mib), repetitions,
        [=](benchmark::State& state) { measure(state, static_cast<std::size_t>(mib) << 20U); });
  rows.push_back({what + ", 1, 4, 16, 64 MiB, against the copy", name, [=](Results const& results) {
                    std::string times;
                    double least = std::numeric_limits<double>::max();
                    for (int const mib : sizes) {
                      double const share = results.counter(of(mib), "of_copy");
                      least = std::min(least, share);
                      times += text("%s%.2f ms (%.0f %%)", times.empty() ? "" : ", ",
                                    1e3 * results.time_s(of(mib)), 100 * share);
                    }
                    return Line{times, "at least 85 % of the copy",
                                least >= 0.85 ? Grade::passed : Grade::failed};
                  }});
}

}  // namespace bench
