// SPDX-License-Identifier: Apache-2.0
#include "papers.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/plan/virtual_workers.hpp>
#include <stagger/report/format.hpp>

#include "../stagger/hetpipe_models.hpp"
#include "claims.hpp"
#include "run.hpp"

namespace hetero {

namespace hetpipe = tool::hetpipe;
namespace placement = stagger::placement;
namespace plan = stagger::plan;
namespace report = stagger::report;

namespace {

constexpr std::int64_t minibatches = 2000;  // of all workers, in each run
constexpr double step = 0.004;              // learning rate of a minibatch

/// The runs of one seed by their place.
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
  kinds
};

/// What all runs learn, and how fast with each minibatch, however many make a push.
Settings learning(Settings s) {
  s.model = "gpt";
  s.batch = 2;
  s.target = 3.6;
  s.window = 120;
  s.rate = step * static_cast<double>(s.workers * s.in_flight);
  s.steps = minibatches / (s.workers * s.in_flight);
  return s;
}

Settings hetpipe_run(Settings s, char const* cluster, char const* gpus, int in_flight, int distance,
                     char const* parameters) {
  s.cluster = cluster;
  s.gpus = gpus;
  s.stages = static_cast<std::int64_t>(s.gpus.size());
  s.in_flight = in_flight;
  s.distance = distance;
  s.parameters = parameters;
  return learning(s);
}

/// Workers in step that each hold the whole model, at a published speed.
Settings horovod_run(Settings s, int gpus, double images_per_s) {
  s.sync = "bsp";
  s.cluster = "equal";
  s.workers = gpus;
  s.stages = 1;
  s.in_flight = 1;
  s.minibatch_s = gpus * hetpipe::batch / images_per_s;
  return learning(s);
}

/// When runs of one kind reach the target, and after how many minibatches; the mean of all seeds.
struct Mean {
  double time_s = 0;
  double minibatches = 0;
};
std::optional<Mean> mean_of(std::vector<Compared> const& runs, std::size_t kind) {
  Mean mean;
  auto const seeds = static_cast<double>(runs.size() / kinds);
  for (std::size_t i = kind; i < runs.size(); i += kinds) {
    auto const when = reached(runs[i].s, runs[i].run);
    if (!when) return std::nullopt;
    mean.time_s += when->time_s / seeds;
    mean.minibatches += static_cast<double>(when->minibatches) / seeds;
  }
  return mean;
}

/// Images a second of all workers with an allocation, with as many in flight as asked for, or the
/// most that there is memory for.
double speed(hetpipe::Profile const& profile, int in_flight, placement::Allocation allocation,
             placement::ParameterPlacement parameters) {
  for (;; --in_flight) {
    try {
      return plan::VirtualWorkers{
          .in_flight = in_flight, .allocations = {allocation}, .parameters = {parameters}}
          .plan(profile, hetpipe::with_servers())
          .samples_per_s;
    } catch (stagger::Error const&) {
      if (in_flight == 1) throw;
    }
  }
}

class HetpipeClaims : public Claims {
 public:
  void allocations(char const* number, hetpipe::Profile const& profile, double local,
                   double horovod, std::size_t horovod_gpus) {
    auto const round_robin = [&](placement::Allocation allocation) {
      return speed(profile, in_flight, allocation, placement::RoundRobin{});
    };
    double const np = round_robin(placement::NodePartition{});
    double const ed = round_robin(placement::EqualDistribution{});
    double const hd = round_robin(placement::HybridDistribution{});
    double const here =
        speed(profile, in_flight, placement::EqualDistribution{}, placement::Local{});
    std::string const name = profile.name + ", images/s: ";
    note(number, name + "Horovod on " + std::to_string(horovod_gpus),
         report::format_fixed(horovod, 0));
    add(number, name + "ED with local parameters", report::format_fixed(local, 0),
        report::format_fixed(here, 0), here >= std::max(ed, hd) && here > horovod);
    std::string const both = report::format_fixed(ed, 0) + ", " + report::format_fixed(hd, 0);
    if (horovod_gpus == 16)
      add(number, name + "ED, HD", "below Horovod", both, std::max(ed, hd) < horovod);
    else
      add(number, name + "ED, HD", "alike", both, std::fabs(hd / ed - 1) <= 0.15);
    add(number, name + "NP", "lowest", report::format_fixed(np, 0),
        np < std::min({ed, hd, horovod}));
  }
  void busiest(hetpipe::Profile const& profile) {
    auto const plan = plan::VirtualWorkers{.in_flight = in_flight,
                                           .allocations = {placement::EqualDistribution{}},
                                           .parameters = {placement::Local{}}}
                          .plan(profile, hetpipe::with_servers());
    std::string shares;
    double ends = 0, inner = 0;
    auto const& stages = plan.workers[0].stages;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      bool const end = s == 0 || s + 1 == stages.size();
      (end ? ends : inner) = std::max(end ? ends : inner, stages[s].busy);
      shares += stagger::text(s == 0 ? "" : ", ", report::format_percent(stages[s].busy, 0));
    }
    add("C13", profile.name + ", how busy the stages of ED are", "first or last most", shares,
        ends > inner);
  }

 private:
  static constexpr int in_flight = 5;  // or the most that there is memory for
};

std::string percent(double share) { return report::format_percent(share, 0); }

}  // namespace

std::vector<Compared> run_hetpipe(Settings const& s) {
  std::vector<Compared> all;
  for (int seed = 0; seed < s.seeds; ++seed) {
    auto const add = [&](std::string name, Settings const& each) {
      if (seed > 0) name += stagger::text(", seed ", s.seed + seed);
      all.push_back({std::move(name), each, {}});
      all.back().s.seed = s.seed + seed;
    };
    add("VGG-19, Horovod", horovod_run(s, 16, 339));
    for (int const d : {0, 4, 32})
      add(stagger::text("VGG-19, D=", d), hetpipe_run(s, "vgg-19", "VRGQ", 5, d, "local"));
    for (int const d : {0, 4})
      add(stagger::text("VGG-19, D=", d, ", round-robin"),
          hetpipe_run(s, "vgg-19", "VRGQ", 5, d, "round-robin"));
    add("ResNet-152, Horovod", horovod_run(s, 12, 415));
    add("ResNet-152, 12 GPUs", hetpipe_run(s, "resnet-152", "VRQ", 5, 0, "local"));
    add("ResNet-152, 16 GPUs", hetpipe_run(s, "resnet-152", "VRGQ", 5, 0, "local"));
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
  HetpipeClaims claims;
  claims.allocations("C9", hetpipe::vgg19(), 606, 339, 16);
  claims.allocations("C10", hetpipe::resnet152(), 580, 415, 12);
  claims.busiest(hetpipe::vgg19());
  claims.busiest(hetpipe::resnet152());
  std::optional<Mean> means[kinds];
  for (std::size_t kind = 0; kind < kinds; ++kind) means[kind] = mean_of(runs, kind);
  /// How much sooner one kind reached the target than another, as a share of the other's time.
  auto const saves = [&](char const* number, char const* what, double published, std::size_t one,
                         std::size_t other, double least) {
    bool const both = means[one] && means[other];
    double const here = both ? 1 - means[one]->time_s / means[other]->time_s : 0;
    claims.add(number, what, percent(published), both ? percent(here) : "not reached",
               both && here >= least);
    return here;
  };
  double const twelve = saves("C14", "ResNet-152 on 12 GPUs sooner at the target than Horovod",
                              0.35, resnet_12, horovod_resnet, 0.15);
  saves("C15", "likewise with 4 G more, and sooner than without", 0.39, resnet_16, horovod_resnet,
        std::max(0.15, twelve));
  saves("C16", "VGG-19, D=0, sooner than Horovod", 0.29, vgg_d0, horovod_vgg, 0);
  saves("C17", "D=4 sooner than D=0, parameters round-robin", 0.28, vgg_remote_d4, vgg_remote_d0,
        0.05);
  saves("C17", "D=4 sooner than Horovod, parameters local", 0.49, vgg_d4, horovod_vgg, 0.05);
  double const speeds = totals_of(runs[vgg_d32].run).per_s / totals_of(runs[vgg_d4].run).per_s;
  claims.add("C18", "throughput with D=32 over D=4", "alike", report::format_fixed(speeds, 2),
             std::fabs(speeds - 1) <= 0.15);
  bool const both = means[vgg_d4] && means[vgg_d32];
  double const more = both ? means[vgg_d32]->minibatches / means[vgg_d4]->minibatches : 0;
  claims.add("C18", "minibatches to the target with D=32 over D=4", "1.05 (time)",
             both ? report::format_fixed(more, 2) : "not reached", both && more >= 1);
  Totals const near = totals_of(runs[vgg_remote_d0].run);
  Totals const far = totals_of(runs[vgg_remote_d4].run);
  double const ratio = far.waiting_s / far.worked_s / (near.waiting_s / near.worked_s);
  claims.add("C19", "waiting with D=4 over D=0, round-robin", "62 %", percent(ratio), ratio <= 0.8);
  double const idle = near.idle_s / near.waiting_s;
  claims.add("C20", "idle share of waiting, D=0, round-robin", "18 %", percent(idle), idle <= 0.35);
  claims.elsewhere("C21", "the regret is below its bound", "theorem 1",
                   "test/unit/staleness/wave_convergence_claims_test.cpp");
  auto const seeds = static_cast<int>(runs.size() / kinds);
  return claims.str() +
         stagger::text("\nHorovod's images/s are the published ones. The target is a loss of ",
                       report::format_fixed(runs[0].s.target, 1), " of examples/gpt, the mean of ",
                       runs[0].s.window, " minibatches;\ntimes to it are means of ",
                       stagger::counted(seeds, "seed"), ".\n");
}

std::vector<Compared> first_seed(std::vector<Compared> runs) {
  runs.erase(runs.begin() + kinds, runs.end());
  return runs;
}

}  // namespace hetero
