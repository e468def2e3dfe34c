// SPDX-License-Identifier: Apache-2.0
#include "paper_hetpipe.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/plan/virtual_workers.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

#include "../stagger/hetpipe_models.hpp"
#include "run.hpp"

namespace hetero {

namespace hetpipe = tool::hetpipe;
namespace plan = stagger::plan;
namespace report = stagger::report;

namespace {

constexpr std::int64_t minibatches = 2400;  // of all workers, in each run
constexpr int seeds = 5;

/// The runs by their place.
enum : std::size_t {
  horovod_vgg,
  vgg_d0,
  vgg_d4,
  vgg_d32,
  vgg_remote_d0,
  vgg_remote_d4,
  horovod_resnet,
  resnet_12,
  resnet_16,
  further_seeds,  // of vgg_d4 and vgg_d32, in turn
};

Settings hetpipe_run(Settings s, char const* cluster, char const* gpus, int in_flight, int distance,
                     char const* parameters) {
  s.cluster = cluster;
  s.gpus = gpus;
  s.stages = static_cast<std::int64_t>(s.gpus.size());
  s.in_flight = in_flight;
  s.distance = distance;
  s.parameters = parameters;
  s.steps = minibatches / (s.workers * s.in_flight);
  return s;
}

/// Workers in step that each hold the whole model, at a published speed.
Settings horovod_run(Settings s, int gpus, double images_per_s) {
  s.sync = "bsp";
  s.cluster = "equal";
  s.workers = gpus;
  s.stages = 1;
  s.in_flight = 1;
  s.minibatch_s = gpus * hetpipe::batch / images_per_s;
  s.steps = minibatches / s.workers;
  return s;
}

double time_of(Compared const& each) {
  auto const when = reached(each.s, each.run);
  return when ? when->time_s : std::numeric_limits<double>::infinity();
}

/// How much sooner one run reached the target than another, as a share of the other's time.
double sooner(Compared const& one, Compared const& other) {
  return 1 - time_of(one) / time_of(other);
}

/// Images a second of all workers with an allocation, with as many in flight as asked for, or the
/// most that there is memory for.
double speed(hetpipe::Profile const& profile, int in_flight, plan::Allocation allocation,
             plan::ParameterPlacement parameters) {
  for (;; --in_flight) {
    try {
      return plan::VirtualWorkers{
          .in_flight = in_flight, .allocations = {allocation}, .parameters = {parameters}}
          .plan(profile, hetpipe::usable())
          .samples_per_s;
    } catch (stagger::Error const&) {
      if (in_flight == 1) throw;
    }
  }
}

class Claims {
 public:
  void add(char const* number, std::string const& what, std::string const& published,
           std::string const& here, bool good) {
    table_.add({number, what, published, here, good ? "yes" : "no"});
  }
  /// What cannot be measured here.
  void add_published(char const* number, std::string const& what, std::string const& published) {
    table_.add({number, what, published, "-", "-"});
  }
  void allocations(char const* number, hetpipe::Profile const& profile, int in_flight, double local,
                   double horovod, std::size_t horovod_gpus) {
    using plan::Allocation;
    using plan::ParameterPlacement;
    double const np =
        speed(profile, in_flight, Allocation::node_partition, ParameterPlacement::round_robin);
    double const ed =
        speed(profile, in_flight, Allocation::equal_distribution, ParameterPlacement::round_robin);
    double const hd =
        speed(profile, in_flight, Allocation::hybrid_distribution, ParameterPlacement::round_robin);
    double const here =
        speed(profile, in_flight, Allocation::equal_distribution, ParameterPlacement::local);
    std::string const name = profile.name + ", images/s: ";
    add(number, name + "ED with local parameters", report::format_fixed(local, 0),
        report::format_fixed(here, 0), here >= std::max(ed, hd) && here > horovod);
    std::string const both = report::format_fixed(ed, 0) + ", " + report::format_fixed(hd, 0);
    add(number, name + "ED, HD", horovod_gpus == 16 ? "below Horovod" : "like Horovod", both,
        horovod_gpus == 16
            ? std::max(ed, hd) < horovod
            : std::max(std::fabs(ed / horovod - 1), std::fabs(hd / horovod - 1)) <= 0.15);
    add(number, name + "NP", "lowest", report::format_fixed(np, 0), np < std::min(ed, hd));
    add_published(number, name + "Horovod on " + std::to_string(horovod_gpus),
                  report::format_fixed(horovod, 0));
  }
  [[nodiscard]] std::string str() const { return table_.str(); }

 private:
  report::TextTable table_{{"", "claim", "published", "here", "reproduced"}};
};

std::string percent(double share) { return report::format_percent(share, 0); }

}  // namespace

std::vector<Compared> run_hetpipe(Settings const& s) {
  std::vector<Compared> all;
  auto const add = [&](std::string name, Settings const& each) {
    all.push_back({std::move(name), each, {}});
  };
  add("VGG-19, Horovod", horovod_run(s, 16, 339));
  for (int const d : {0, 4, 32})
    add(stagger::text("VGG-19, D=", d), hetpipe_run(s, "vgg-19", "VRGQ", 5, d, "local"));
  for (int const d : {0, 4})
    add(stagger::text("VGG-19, D=", d, ", round-robin"),
        hetpipe_run(s, "vgg-19", "VRGQ", 5, d, "round-robin"));
  add("ResNet-152, Horovod", horovod_run(s, 12, 415));
  add("ResNet-152, 12 GPUs", hetpipe_run(s, "resnet-152", "VRQ", 6, 0, "local"));
  add("ResNet-152, 16 GPUs", hetpipe_run(s, "resnet-152", "VRGQ", 7, 0, "local"));
  for (int seed = 1; seed < seeds; ++seed)
    for (int const d : {4, 32}) {
      add(stagger::text("VGG-19, D=", d, ", seed ", s.seed + seed),
          hetpipe_run(s, "vgg-19", "VRGQ", 5, d, "local"));
      all.back().s.seed = s.seed + seed;
    }
  std::vector<Settings> settings;
  std::vector<std::string> names;
  for (Compared const& each : all) {
    settings.push_back(each.s);
    names.push_back(each.name);
  }
  auto outcomes = run_all(settings, names);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!outcomes[i].why.empty())
      stagger::raise(stagger::Errc::bad_configuration, all[i].name, ": ", outcomes[i].why);
    all[i].run = std::move(outcomes[i].run);
  }
  return all;
}

std::string claims_of_hetpipe(std::vector<Compared> const& runs) {
  Claims claims;
  claims.allocations("C9", hetpipe::vgg19(), 5, 606, 339, 16);
  claims.allocations("C10", hetpipe::resnet152(), 7, 580, 415, 12);
  auto const saves = [&](char const* number, char const* what, double published, std::size_t one,
                         std::size_t other, double least) {
    double const here = sooner(runs[one], runs[other]);
    bool const both = std::isfinite(time_of(runs[one])) && std::isfinite(time_of(runs[other]));
    claims.add(number, what, percent(published), both ? percent(here) : "not reached",
               both && here >= least);
    return here;
  };
  double const twelve = saves("C14", "ResNet-152 on 12 GPUs sooner at the target than Horovod",
                              0.35, resnet_12, horovod_resnet, 0.15);
  saves("C15", "likewise with 4 G more, and sooner than without", 0.39, resnet_16, horovod_resnet,
        std::max(0.15, twelve));
  saves("C16", "VGG-19, D=0, sooner than Horovod", 0.29, vgg_d0, horovod_vgg, 0);
  saves("C17", "D=4 sooner than D=0, local parameters", 0.28, vgg_d4, vgg_d0, 0.05);
  saves("C17", "D=4 sooner than D=0, round-robin", 0.28, vgg_remote_d4, vgg_remote_d0, 0.05);
  saves("C17", "D=4 sooner than Horovod", 0.49, vgg_d4, horovod_vgg, 0.05);
  double const speeds = totals_of(runs[vgg_d32].run).per_s / totals_of(runs[vgg_d4].run).per_s;
  claims.add("C18", "throughput with D=32 over D=4", "alike", report::format_fixed(speeds, 2),
             std::fabs(speeds - 1) <= 0.15);
  double samples[2] = {0, 0};  // with D=4, D=32
  bool all_reached = true;
  for (std::size_t i = 0; i < 2; ++i)
    for (int seed = 0; seed < seeds; ++seed) {
      Compared const& each =
          runs[seed == 0 ? vgg_d4 + i : further_seeds + 2 * static_cast<std::size_t>(seed - 1) + i];
      auto const when = reached(each.s, each.run);
      all_reached = all_reached && when;
      if (when) samples[i] += static_cast<double>(when->minibatches);
    }
  double const more = samples[1] / samples[0];
  claims.add("C18", stagger::text("minibatches to the target with D=32 over D=4, mean of ", seeds),
             "1.05 (time)", all_reached ? report::format_fixed(more, 2) : "not reached",
             all_reached && more >= 1);
  Totals const near = totals_of(runs[vgg_remote_d0].run);
  Totals const far = totals_of(runs[vgg_remote_d4].run);
  double const ratio = far.waiting_s / far.worked_s / (near.waiting_s / near.worked_s);
  claims.add("C19", "waiting with D=4 over D=0, round-robin", "62 %", percent(ratio), ratio <= 0.8);
  double const idle = near.idle_s / near.waiting_s;
  claims.add("C20", "idle share of waiting, D=0, round-robin", "18 %", percent(idle), idle <= 0.35);
  return claims.str();
}

}  // namespace hetero
