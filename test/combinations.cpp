// SPDX-License-Identifier: Apache-2.0
/// @file   Prints the end of docs/combinations.md from the rules of core/combinations.hpp; compiled
///         and run by combinations.cmake.

#include <array>
#include <cstddef>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/core/combinations.hpp>

using stagger::detail::Combination;
using stagger::detail::Features;
using stagger::detail::Verdict;
namespace feature = stagger::detail::feature;

namespace {

/// Of two choices of one kind, a pipeline has at most one.
enum class Kind { schedule, staleness, ranks, split, collective, device, optimizer, other };
/// A collective adds up gradients, or has a parameter server.
enum class Collective { any, sum, server };

/// What a program gives `with`, or calls: a row and a column of the table.
struct Choice {
  Kind kind;
  char const* words;
  Features features{};
  Collective collective = Collective::any;
};

constexpr Features worker = feature::workers_model;
constexpr Features step_worker = worker | feature::synchronous;
constexpr Choice choices[] = {
    {Kind::schedule, "a schedule with a flush"},
    {Kind::schedule, "a schedule without a flush", feature::no_flush},
    {Kind::schedule, "a bidirectional schedule", feature::two_owners},
    {Kind::schedule, "a schedule on a V"},
    {Kind::staleness, "`Synchronous`", feature::synchronous},
    {Kind::staleness, "`WeightStashing`, `Delayed`, `DoubleBuffered`", feature::asynchronous},
    {Kind::staleness, "`StaleSynchronous`, `Asynchronous`", step_worker, Collective::server},
    {Kind::staleness, "`RoundRobinSynchronous`", step_worker | feature::adds_in_turn,
     Collective::server},
    {Kind::staleness, "`LocalSgd`", step_worker | feature::averages, Collective::server},
    {Kind::staleness, "`OverlappedSynchronous`", step_worker | feature::late, Collective::server},
    {Kind::staleness, "`WaveSynchronous`", worker | feature::asynchronous, Collective::server},
    {Kind::ranks, "`Options::replicas`", feature::replicas},
    {Kind::split, "`LayerSplit`, accumulating", feature::layer_split | feature::replicas},
    {Kind::split, "`LayerSplit`, updating in each pass",
     feature::layer_split | feature::each_pass | feature::replicas},
    {Kind::other, "`AllReduce::shard_optimizer`", feature::shards, Collective::sum},
    {Kind::other, "`By::library`", feature::by_library, Collective::sum},
    {Kind::collective, "a server in this process", feature::server, Collective::server},
    {Kind::collective, "`mpi::ParameterServer`",
     feature::server | feature::remote | feature::reaches_processes, Collective::server},
    {Kind::collective, "a server over TCP", feature::server | feature::remote, Collective::server},
    {Kind::other, "`GroupedPushes`", feature::grouped_pushes, Collective::server},
    {Kind::other, "`ServerOptions::durable`", feature::durable, Collective::server},
    {Kind::other, "`ServerOptions::log`", feature::logs, Collective::server},
    {Kind::device, "`host::Threads`", feature::of_threads},
    {Kind::device, "`sim::VirtualClock`", feature::of_virtual_clock},
    {Kind::device, "`mpi::Processes`", feature::of_processes},
    {Kind::device, "`cuda::Gpus`", feature::of_gpus},
    {Kind::device, "`nccl::Gpus`", feature::of_gpus_apart | feature::apart},
    {Kind::other, "a placement", feature::placement},
    {Kind::other, "an optimizer that is not `element_wise`", feature::whole_parameters},
    {Kind::optimizer, "an optimizer whose update is a kernel",
     feature::kernel | feature::asks_scale | feature::suits_server},
    {Kind::other, "a layer with `gradients_complete`", feature::own_weights},
    {Kind::other, "`clip_norm`", feature::clips},
    {Kind::other, "`NonFinite::skip`", feature::skips | feature::looks},
    {Kind::other, "`recompute`", feature::recomputes},
    {Kind::other, "`check_recompute`", feature::checks_recompute},
    {Kind::other, "`record`", feature::records},
    {Kind::other, "`enqueue`", feature::enqueue},
    {Kind::other, "`capture`", feature::capture},
    {Kind::other, "`predict`", feature::predicts},
    {Kind::other, "`Checkpoints::restore`", feature::restores},
    {Kind::other, "`Profiler`", feature::profiles | feature::records},
};

bool excludes(Choice const& a, Choice const& b) {
  bool const kinds = a.kind == b.kind && a.kind != Kind::other;
  return kinds || (a.collective != Collective::any && b.collective != Collective::any &&
                   a.collective != b.collective);
}

/// Calls `visit` with the features of each pipeline that has two choices, and one of every other
/// kind that a pipeline needs; and with the same features without those of the row.
template <class Visit>
void each_pipeline(Choice const& row, Choice const& column, Visit const& visit) {
  constexpr Features given = feature::trains | feature::looks | feature::adds_by_kernel |
                             feature::norm_by_kernel | feature::finds_by_kernel |
                             feature::begins_by_kernel;
  constexpr Kind needed[] = {Kind::schedule,   Kind::staleness, Kind::ranks,
                             Kind::collective, Kind::device,    Kind::optimizer};
  bool const server =
      row.collective == Collective::server || column.collective == Collective::server;
  auto const complete = [&](auto const& self, std::size_t at, Features features) -> void {
    if (at == std::size(needed))
      return visit(features | row.features | column.features, features | column.features);
    Kind const kind = needed[at];
    if (row.kind == kind || column.kind == kind) return self(self, at + 1, features);
    bool const may_lack =
        kind == Kind::ranks || kind == Kind::optimizer || (kind == Kind::collective && !server);
    if (may_lack) self(self, at + 1, features);
    for (Choice const& choice : choices)
      if (choice.kind == kind && !excludes(choice, row) && !excludes(choice, column))
        self(self, at + 1, features | choice.features);
  };
  complete(complete, 0, given);
}

struct Known : Combination {
  std::string_view why;
  std::string name{};  // in the tables: L1, N1 and so on
};

std::vector<Known> known_rules() {
  using namespace stagger::detail::feature;
  std::vector<Known> known{
#define STAGGER_RULE(name, verdict, all, mend, subject, says, why) \
  {{all, mend, Verdict::verdict, subject, says}, why},
      STAGGER_RULES(STAGGER_RULE)
#undef STAGGER_RULE
  };
  std::array<int, 4> count{};
  for (Known& rule : known) {
    auto const verdict = static_cast<std::size_t>(rule.verdict);
    rule.name = "LNWE"[verdict] + std::to_string(++count[verdict]);
  }
  return known;
}

/// The pipeline with both choices of a pair that comes nearest to one that runs: one that runs, or
/// has no law against it, or none of the rules that do not need the row, or few rules.
struct Nearest {
  bool law = true;
  bool strange = true;
  std::size_t refusals = ~std::size_t{};
  Known const* rule = nullptr;  // null: none refuses it
  Known const* idle = nullptr;  // by this rule something has no effect

  [[nodiscard]] bool is_before(Nearest const& other) const {
    if ((refusals == 0) != (other.refusals == 0)) return refusals == 0;
    if (law != other.law) return !law;
    if (strange != other.strange) return !strange;
    if (refusals != other.refusals) return refusals < other.refusals;
    return idle == nullptr && other.idle != nullptr;
  }
};

std::string cell(Choice const& row, Choice const& column, std::span<Known const> known) {
  if (excludes(row, column)) return "";
  Nearest nearest;
  each_pipeline(row, column, [&](Features features, Features without_row) {
    Nearest found{.law = false, .strange = false, .refusals = 0};
    for (Known const& rule : known) {
      found.strange = found.strange || rule.refuses(without_row);
      if (rule.refuses(features)) {
        ++found.refusals;
        bool const law = rule.verdict == Verdict::law;
        if (found.rule == nullptr || (law && !found.law)) found.rule = &rule;
        found.law = found.law || law;
      } else if (rule.holds(features)) {
        found.idle = &rule;
      }
    }
    if (found.is_before(nearest)) nearest = found;
  });
  if (nearest.rule != nullptr) return "**" + nearest.rule->name + "**";
  std::string words = "yes";
  if (nearest.idle != nullptr) words += " " + nearest.idle->name;
  for (Known const& rule : known)  // what the pair needs
    if (rule.holds(row.features | column.features) && !rule.holds(row.features) &&
        !rule.holds(column.features) && rule.verdict == Verdict::need)
      words += " " + rule.name;
  return words;
}

std::string words_of(Known const& rule) {
  struct Words {
    Features feature;
    char const* words;
  };
  static constexpr Words all[] = {
#define STAGGER_FEATURE(name, words) {feature::name, words},
      STAGGER_FEATURES(STAGGER_FEATURE)
#undef STAGGER_FEATURE
  };
  std::string with;
  std::string without;
  for (Words const& one : all) {
    if (rule.all.has(one.feature)) with += (with.empty() ? "" : " + ") + std::string(one.words);
    if (rule.mend.has(one.feature))
      without += (without.empty() ? " without " : " or ") + std::string(one.words);
  }
  return with + without;
}

/// For a cell of a table in Markdown.
std::string escaped(std::string_view text) {
  std::string out;
  for (char const c : text)
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '*' || c == '_' || c == '|')
      (out += '\\') += c;
    else
      out += c;
  return out;
}

void print_rules(std::span<Known const> known, Verdict verdict) {
  std::cout << "\n| rule | what | the sentence | why |\n|---|---|---|---|\n";
  for (Known const& rule : known)
    if (rule.verdict == verdict)
      std::cout << "| " << rule.name << " | " << escaped(words_of(rule)) << " | "
                << escaped(rule.subject) << escaped(rule.says) << " | " << escaped(rule.why)
                << " |\n";
}

}  // namespace

int main() {
  std::vector<Known> const known = known_rules();
  std::array<std::size_t, 4> rules{};
  for (Known const& rule : known) ++rules[static_cast<std::size_t>(rule.verdict)];
  constexpr std::size_t count = std::size(choices);
  std::size_t yes = 0;
  std::size_t by_law = 0;
  std::size_t not_built = 0;
  std::string table = "| |";
  for (std::size_t c = 1; c < count; ++c) table += " " + std::to_string(c) + " |";
  table += "\n|---|";
  for (std::size_t c = 1; c < count; ++c) table += "---|";
  table += "\n";
  for (std::size_t r = 0; r < count; ++r) {
    table += "| " + std::to_string(r + 1) + " " + choices[r].words + " |";
    for (std::size_t c = 0; c < r; ++c) {
      std::string const found = cell(choices[r], choices[c], known);
      yes += found.starts_with("yes");
      by_law += found.starts_with("**L");
      not_built += found.starts_with("**N");
      table += " " + found + " |";
    }
    table += "\n";
  }
  std::cout << "\n## Pairs\n\nOf " << yes + by_law + not_built << " pairs, " << yes
            << " go together, " << by_law << " cannot by a law, and " << not_built
            << " are not built.\n\n"
            << table;
  std::cout << "\n## Laws\n\nThese " << rules[0]
            << " rules stay: a promise would break, or one of the two has nothing to do.\n";
  print_rules(known, Verdict::law);
  std::cout << "\n## Not built\n\nThese " << rules[1]
            << " rules can go: nothing speaks against what they refuse, but nobody has built it.\n";
  print_rules(known, Verdict::not_built);
  std::cout << "\n## Only with something else\n\nWhat these " << rules[2]
            << " rules refuse goes together as soon as the pipeline has what they ask for.\n";
  print_rules(known, Verdict::need);
  std::cout << "\n## Without effect\n\nThese " << rules[3]
            << " combinations are allowed, but one of their parts changes nothing.\n";
  print_rules(known, Verdict::no_effect);
}
