// SPDX-License-Identifier: Apache-2.0
#include "papers.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

#include "claims.hpp"
#include "osp_accuracy.hpp"
#include "step_times.hpp"
#include "teacher.hpp"

namespace hetero {

namespace {

namespace report = stagger::report;

std::string fixed(double value, int digits = 2) { return report::format_fixed(value, digits); }

/// Steps of the paper's networks, and what follows from them and from steps of equal layers.
class StepClaims {
 public:
  StepClaims() {
    for (step_times::Network const& each : step_times::networks()) add(each);
    claims_.add("T1", "throughput over BSP, five networks", "up to 1.5",
                stagger::text("1.2 or more for ", gains_, ", most ", fixed(most_)),
                gains_ >= 3 && most_ >= 1.5);
    claims_.add("T2", "fastest on image networks, before BSP, ASP and R2SP", "all four",
                stagger::text(first_, " of four"), first_ >= 3);
    claims_.add("T3", "throughput over ASP, BERT", "near 1", fixed(over_asp_), over_asp_ >= 0.8);
    of_equal_layers();
  }
  [[nodiscard]] std::string times() const { return times_.str(); }
  [[nodiscard]] Claims& claims() noexcept { return claims_; }

 private:
  static constexpr int workers = 8;

  void add(step_times::Network const& network) {
    step_times::Link const link{.r = network.r};
    auto const time = [&](auto const& model, step_times::Link const& on) {
      return step_times::timed(model, network.layers, on).all_s / step_times::computation_s;
    };
    double const in_step = time(bsp, link);
    double const at_once = time(asp, link);
    double const turns = time(r2sp, {.r = network.r, .duplex = stagger::sim::Duplex::half});
    double const late = time(
        step_times::late<osp::SplitLayer>(step_times::best_share(network.r, 1), network.layers),
        link);
    times_.add({network.name, fixed(network.r), fixed(in_step), fixed(at_once), fixed(turns),
                fixed(late), fixed(in_step / late), fixed(at_once / late), fixed(turns / late)});
    double const gain = in_step / late;
    most_ = std::max(most_, gain);
    if (gain >= 1.2) ++gains_;
    if (network.name == "BERT-base")
      over_asp_ = at_once / late;
    else if (late < std::min({in_step, at_once, turns}))
      ++first_;
  }

  void of_equal_layers() {
    using step_times::timed;
    step_times::Sizes const equal(40, 12);
    double const u = 0.6;
    double const hidden = 1 - timed(step_times::late(u, equal), equal, {.r = 1}).wait_s /
                                  timed(bsp, equal, {.r = 1}).wait_s;
    claims_.add("T4", "time between computations that OSP with 0.6 late saves", "shortest",
                fixed(hidden), std::fabs(hidden - u) <= 0.05);
    std::string shares;
    double before = -1;
    bool rising = true;
    for (int const n : {1, 2, 4, 8}) {
      double const share = step_times::communication_of(n, 0.2, equal);
      shares += (n == 1 ? "" : ", ") + fixed(share);
      rising = rising && share > before;
      before = share;
    }
    claims_.add("T5", "share of communication, 1, 2, 4, 8 workers", "rises", shares, rising);
    double const r = 0.1 / 0.9 / 2;
    double const slow = timed(bsp, equal, {.r = r}).communication();
    double const fast = timed(bsp, equal, {.r = r * 35.58 / 13.45}).communication();
    claims_.add("T6", "likewise on a GPU that is 2.65 times as fast", "10 % to 39 %",
                report::format_percent(slow) + " to " + report::format_percent(fast), fast > slow);
    double const bulk_s = timed(bsp, equal, {.r = 5}).all_s;
    double const alone_s = timed(asp, equal, {.r = 5.0 / workers, .workers = 1}).all_s;
    claims_.add("T7", "BSP's step over that of an ASP worker without others, r = 5", "up to 6",
                fixed(bulk_s / alone_s), bulk_s / alone_s > 4 && bulk_s / alone_s <= workers);
  }

  report::TextTable times_{
      {"", "r", "BSP", "ASP", "R2SP", "OSP", "OSP over BSP", "over ASP", "over R2SP"}};
  Claims claims_{};
  double most_ = 0, over_asp_ = 0;
  int gains_ = 0, first_ = 0;
};

/// The network of teacher.hpp.
std::string accuracy_on_teacher(Settings const& s, Claims& others) {
  auto const first = static_cast<std::uint64_t>(s.seed);
  std::vector<teacher::Task> tasks;
  for (std::int64_t n = 0; n < s.seeds; ++n)
    tasks.emplace_back(first + static_cast<std::uint64_t>(n), 4096, 4000);
  AccuracyRuns runs{.usual = {.looks = 4, .rate = 0.6}, .full_rate = 0.3, .edge_rate = 1.5};
  auto const epoch = tasks.front().steps(runs.usual);
  runs.usual.epochs = s.paper_steps > 0 ? std::max(1, static_cast<int>(s.paper_steps) / epoch) : 12;
  runs.usual.halving_epochs = (runs.usual.epochs + 1) / 2;
  AccuracyClaims<teacher::Task> all(tasks, first, runs);

  learning::Settings pushed = runs.usual;
  Looks const in_step = learn_each(tasks, first, "BSP", bsp, pushed);
  pushed.kept = 0.01;
  double const dropped =
      accuracy(in_step) - accuracy(learn_each(tasks, first, "BSP, 1 % of gradients", bsp, pushed));
  others.note("O4", "1 % of gradients pushed, the rest dropped: points less", "up to 20",
              fixed(dropped, 1));
  Looks const nothing =
      learn_each(tasks, first, "OSP, nothing late", Osp<osp::ShareLate>{.budget = {0}}, runs.usual);
  bool same = true;
  for (std::size_t n = 0; n < nothing.size(); ++n)
    same = same && nothing[n].back().bits == in_step[n].back().bits;
  others.add("D1", "nothing late is BSP: the same bits", "yes", same ? "yes" : "no", same);
  others.add("D1", "everything late is ASP", "yes", "BSP, a step late", false);
  return all.times() + "\n" + all.claims().str();
}

}  // namespace

std::string claims_of_osp(Settings const& s) {
  StepClaims steps;
  Claims& others = steps.claims();
  others.elsewhere("O1", "overhead on workers", "about 0", "benchmark/late.cpp");
  others.elsewhere("O2", "overhead on the worker that is the server, too", "3 to 8 %",
                   "benchmark/late.cpp");
  others.elsewhere("O3", "message that names late layers, 1000 layers", "below 1 KB",
                   "test/unit/parameters/late_layers_test.cpp");
  std::string const on_teacher = accuracy_on_teacher(s, others);
  std::string const on_textures = accuracy_of_osp_on_textures(s);
  return "A step in computations, of the paper's networks:\n" + steps.times() + "\n" +
         others.str() +
         "\nA network that learns from another one, eight workers; a step in computations, and "
         "seconds to BSP's accuracy\nless two points:\n" +
         on_teacher + "\nThe network of examples/vgg, four workers, likewise:\n" + on_textures;
}

}  // namespace hetero
