// SPDX-License-Identifier: Apache-2.0
// stagger merge: groupings of gradients for all-reduce, and the time that they save.

#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/collective/iteration.hpp>
#include <stagger/collective/line_fit.hpp>
#include <stagger/json/document.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/table.hpp>

#include "../command.hpp"
#include "../networks.hpp"
#include "../pipeline.hpp"
#include "../profile.hpp"

namespace tool {

namespace {

namespace collective = stagger::collective;
namespace report = stagger::report;
using collective::Algorithm;
using collective::CostLine;

constexpr collective::Link ethernet{45.26e-6, 0.8e-9, 0.114e-9};  // of MG-WFBP's 10 GbE cluster

/// Iteration times of one network on one cluster.
struct Times {
  double layerwise_s, single_s, greedy_s, optimal_s, compute_s;
};

Times times(Layers const& layers, CostLine line) {
  auto const of = [&](auto const& policy) {
    auto const groups = policy.groups(layers, line);
    return collective::evaluate(layers, groups, line);
  };
  auto const best = of(collective::grouping::Optimal{});
  return {of(collective::grouping::Layerwise{}).iteration_s,
          of(collective::grouping::Single{}).iteration_s,
          of(collective::grouping::Greedy{}).iteration_s, best.iteration_s,
          best.iteration_s - best.exposed_s};
}

/// The cost line of a ring of 64 nodes, with the paper's start-up time, and a time per byte that is
/// fitted to the measured latencies.
CostLine measured_line(std::string const& path) {
  Json const json = stagger::json::Field::parse(read_file(path), source_name(path)).value();
  auto const fail = [&](std::string const& what) -> CostLine {
    throw stagger::Error(stagger::Errc::bad_data,
                         path + " " + what + "; it needs \"nodes\": {\"2\": [[bytes, us], ...]}");
  };
  if (!json.is_object() || !json.contains("nodes") || !json["nodes"].is_object() ||
      json["nodes"].empty()) {
    return fail("has no measured latencies");
  }
  double bracket = 0;  // 2 beta + gamma
  auto const& all = json["nodes"];
  for (auto const& [nodes, rows] : all.items()) {
    int const n = std::atoi(nodes.c_str());
    if (n < 2 || !rows.is_array()) return fail("has latencies of '" + nodes + "' nodes");
    std::vector<collective::Sample> samples;
    for (auto const& row : rows) {
      bool const pair =
          row.is_array() && row.size() == 2 && row[0].is_number_unsigned() && row[1].is_number();
      if (!pair) return fail("has the row " + row.dump().substr(0, 40));
      samples.push_back({row[0].get<std::uint64_t>(), row[1].get<double>() * 1e-6});
    }
    auto const fit =
        collective::fit_per_byte(samples, collective::cost(Algorithm::ring, n, ethernet).startup_s);
    bracket += fit.line.per_byte_s * n / (n - 1) / static_cast<double>(all.size());
  }
  return {collective::cost(Algorithm::ring, 64, ethernet).startup_s, bracket * 63 / 64};
}

class Merge final : public Command {
 public:
  void flags(Flags& app) override {
    char const* group = "The network";
    Flag const profile =
        app.add("--profile", profile_, "Layers, JSON or PipeDream's graph.txt; - is standard input",
                "FILE");
    nodes_flag_ = app.add("--nodes", nodes_, "Ranks that add their gradients", "N", group);
    algorithm_flag_ =
        app.add("--algorithm", algorithm_,
                "ring | tree | recursive-doubling | halving-doubling; default ring", "WORD", group);
    auto const cost = [&](char const* flag, double& value, char const* what) {
      return app.add(flag, value, what, "SECONDS", group);
    };
    link_flags_ = {cost("--alpha", link_.alpha_s, "Start-up of one message"),
                   cost("--beta", link_.beta_s_per_byte, "Transfer of one byte"),
                   cost("--gamma", link_.gamma_s_per_byte, "Adding of one byte")};
    line_flags_ = {cost("--startup", line_.startup_s, "All-reduce itself: start-up"),
                   cost("--per-byte", line_.per_byte_s, "All-reduce itself: each byte")};
    own_flags_ = {profile,
                  app.add("--policy", policy_, alternatives(policies()) + "; default all", "WORD")};
    app.add("--paper", paper_, "mg-wfbp: the published figures beside ours", "NAME");
    app.add("--profiles", profiles_,
            "Folder with measured profiles for --paper; default: STAGGER_PROFILES", "DIR");
    add_formats(app, {"text", "json"});
    app.footer(
        "Example: stagger merge --profile examples/stagger/model.json --nodes 64 --alpha 45e-6 "
        "--beta 0.8e-9 --gamma 0\n"
        "prints the iteration time of each grouping over a ring of 64 nodes.");
  }

  Answer run() override {
    bool const json = format() == "json";
    if (!paper_.empty()) {
      require_word("--paper", paper_, {"mg-wfbp"});
      for (auto const& flags : {own_flags_, formula_flags(), line_flags_})
        leave_out(flags, "--paper brings its own layers, network and groupings");
      return {paper(json)};
    }
    if (!profiles_.empty())
      refuse("--profiles is for --paper; a profile of your own is --profile FILE");
    if (profile_.empty()) refuse("merge needs --profile FILE, or --paper mg-wfbp");
    CostLine const line = cost_line();
    std::vector<std::string> names{policy_};
    if (policy_ == "all") names = collective::grouping::names("");
    std::vector<collective::grouping::Named> chosen;
    for (auto const& name : names) {
      if (name.find(':') == std::string::npos) require_word("--policy", name, policies());
      chosen.push_back(collective::grouping::named(name));
    }
    Layers const layers = read_layers(profile_);

    Json list = Json::array();
    report::TextTable table({"policy", "messages", "iteration", "exposed"});
    for (std::size_t i = 0; i < names.size(); ++i) {
      auto const groups = chosen[i].groups(layers, line);
      auto const played = collective::evaluate(layers, groups, line);
      Json pairs = Json::array();
      for (auto const& g : groups) pairs.push_back({g.highest, g.lowest});
      list.push_back({{"policy", names[i]},
                      {"groups", pairs},
                      {"iteration_s", played.iteration_s},
                      {"exposed_s", played.exposed_s}});
      table.add({names[i], std::to_string(groups.size()),
                 report::format_seconds(played.iteration_s, 4),
                 report::format_seconds(played.exposed_s)});
    }
    return {json ? dump(list) : table.str()};
  }

 private:
  [[nodiscard]] static std::vector<std::string> policies() {
    auto names = collective::grouping::names();
    names.emplace_back("all");
    return names;
  }

  /// Those from which a formula computes what an all-reduce costs.
  [[nodiscard]] std::vector<Flag> formula_flags() const {
    std::vector<Flag> all = link_flags_;
    all.insert(all.begin(), {nodes_flag_, algorithm_flag_});
    return all;
  }

  [[nodiscard]] CostLine cost_line() const {
    auto const all = [](std::vector<Flag> const& flags, char const* with) {
      for (Flag const& flag : flags) {
        if (!flag.given()) refuse(flag.name() + " is missing; it belongs to " + with);
      }
    };
    require_number("--alpha", link_.alpha_s);
    require_number("--beta", link_.beta_s_per_byte);
    require_number("--gamma", link_.gamma_s_per_byte);
    require_number("--startup", line_.startup_s);
    require_number("--per-byte", line_.per_byte_s);
    require_word("--algorithm", algorithm_,
                 {"ring", "tree", "recursive-doubling", "halving-doubling"});
    if (std::string const line = first_given(line_flags_); !line.empty()) {
      if (std::string const other = first_given(formula_flags()); !other.empty())
        refuse(other + " and " + line + " both say what an all-reduce costs; leave one out");
      all(line_flags_, "--startup a --per-byte b");
      return line_;
    }
    if (!nodes_flag_.given()) {
      refuse("merge needs --nodes N --alpha A --beta B --gamma G, or --startup a --per-byte b");
    }
    require_count(nodes_flag_, nodes_);
    all(link_flags_, "--nodes");
    Algorithm const algorithm = algorithm_ == "tree"                 ? Algorithm::tree
                                : algorithm_ == "recursive-doubling" ? Algorithm::recursive_doubling
                                : algorithm_ == "halving-doubling"   ? Algorithm::halving_doubling
                                                                     : Algorithm::ring;
    return collective::cost(algorithm, nodes_, link_);
  }

  /// S. Shi, X. Chu, B. Li, "MG-WFBP", INFOCOM 2019: published and reproduced figures.
  [[nodiscard]] std::string paper(bool json) const {
    auto const ring = [](int n) { return collective::cost(Algorithm::ring, n, ethernet); };
    Layers const google = googlenet().timed(0.28), resnet = resnet50().timed(0.40);
    Times const g64 = times(google, ring(64)), r64 = times(resnet, ring(64));
    Times const g8 = times(google, ring(8)), r8 = times(resnet, ring(8));
    std::optional<Times> measured;
    if (std::string const folder = profiles_folder(profiles_); !folder.empty()) {
      measured = times(read_layers(folder + "/bcaffe-googlenet-k80.json"),
                       measured_line(folder + "/bcaffe-osu-allreduce-10gbe.json"));
    }

    struct Row {
      std::string claim;
      std::optional<double> published;
      double formulas;
      std::optional<double> measured{};
      char const* unit = "";
    };
    auto const from = [&](auto const& figure) {
      return measured ? std::optional<double>(figure(*measured)) : std::nullopt;
    };
    auto const over_layerwise = [](Times const& t) { return t.layerwise_s / t.greedy_s; };
    auto const over_single = [](Times const& t) { return t.single_s / t.greedy_s; };
    auto const exact = [](Times const& t) { return t.greedy_s / t.optimal_s; };
    std::vector<Row> const rows{
        {"start-up of the ring, 2 nodes", 90.52, ring(2).startup_s * 1e6, {}, "us"},
        {"start-up of the ring, 4 nodes", 271.56, ring(4).startup_s * 1e6, {}, "us"},
        {"start-up of the ring, 8 nodes", 633.64, ring(8).startup_s * 1e6, {}, "us"},
        {"GoogleNet, 64 nodes: greedy over layerwise", 1.78, over_layerwise(g64),
         from(over_layerwise)},
        {"GoogleNet, 64 nodes: greedy over single", 1.35, over_single(g64), from(over_single)},
        {"GoogleNet, 64 nodes: optimal over greedy", {}, exact(g64), from(exact)},
        {"ResNet-50, 64 nodes: greedy over layerwise", 1.75, over_layerwise(r64)},
        {"ResNet-50, 64 nodes: greedy over single", 1.45, over_single(r64)},
        {"ResNet-50, 64 nodes: optimal over greedy", {}, exact(r64)},
        {"GoogleNet, 8 nodes: greedy over single", 1.36, over_single(g8)},
        {"GoogleNet, 8 nodes: greedy over layerwise", 1.2, over_layerwise(g8)},
        {"ResNet-50, 8 nodes: greedy over single", 1.36, over_single(r8)},
        {"ResNet-50, 8 nodes: greedy over layerwise", 1.2, over_layerwise(r8)},
        {"ResNet-50, 64 nodes: efficiency of layerwise", 0.55, r64.compute_s / r64.layerwise_s},
        {"ResNet-50, 64 nodes: efficiency of single", 0.55, r64.compute_s / r64.single_s},
        {"ResNet-50, 64 nodes: efficiency of greedy", {}, r64.compute_s / r64.greedy_s},
    };
    if (json) {
      Json list = Json::array();
      auto const value = [](std::optional<double> const& x) {
        return x ? Json(*x) : Json(nullptr);
      };
      for (auto const& row : rows) {
        list.push_back({{"claim", row.claim},
                        {"unit", row.unit},
                        {"published", value(row.published)},
                        {"formulas", row.formulas},
                        {"measured_profiles", value(row.measured)}});
      }
      return dump(list);
    }
    report::TextTable table({"MG-WFBP", "published", "from formulas", "from measured profiles"});
    for (auto const& row : rows) {
      auto const value = [&](std::optional<double> const& x) {
        std::string const unit = *row.unit == 0 ? "" : std::string(" ") + row.unit;
        return x ? report::format_fixed(*x, *row.unit == 0 ? 3 : 2) + unit : std::string("-");
      };
      table.add({row.claim, value(row.published), value(row.formulas), value(row.measured)});
    }
    std::string text = table.str();
    text +=
        "\ngreedy is the published rule, optimal the exact grouping; \"a over b\" is the time of "
        "b\n"
        "divided by that of a. Formulas: ring, alpha 45.26 us, beta 0.8 ns/B, gamma 0.114 ns/B; "
        "layer\n"
        "times from the networks' shapes for 0.28 s (GoogleNet) and 0.40 s (ResNet-50).\n";
    text += measured
                ? "Measured: the authors' layer times on a K80 and their latencies on 10 GbE.\n"
                : "No measured profiles: name their folder with --profiles or STAGGER_PROFILES.\n";
    return text;
  }

  std::string profile_{}, algorithm_ = "ring", policy_ = "all", paper_{}, profiles_{};
  int nodes_ = 0;
  collective::Link link_{};
  CostLine line_{};
  Flag nodes_flag_{}, algorithm_flag_{};
  std::vector<Flag> link_flags_{}, line_flags_{}, own_flags_{};
};

Registered<Merge> const merge_registered{7, "merge", "Group gradients into messages"};

}  // namespace

}  // namespace tool
