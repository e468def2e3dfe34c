// SPDX-License-Identifier: Apache-2.0
#include "pipeline.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>
#include <utility>

#include <stagger/schedule/csv.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/lower.hpp>

#include "command.hpp"

namespace tool {

namespace schedule = stagger::schedule;

void CostFlags::add(Flags& app) {
  char const* const group = "Costs, of each stage and microbatch, in seconds";
  auto const cost = [&](char const* flag, double& value, char const* what) {
    single_.push_back(app.add(flag, value, what, "SECONDS", group));
  };
  cost("--forward", each_.forward_s, "F; default 1");
  cost("--backward-input", each_.backward_input_s, "I; default 1");
  cost("--backward-weight", each_.backward_weight_s, "W; default 1; a full backward costs I + W");
  cost("--transfer", each_.transfer_s, "C, from one rank to the next; default 0");
  file_flag_ = app.add("--stage-costs", file_,
                       "CSV with stage,forward_s,backward_input_s,backward_weight_s,transfer_s",
                       "FILE", group);
}

std::vector<Flag> CostFlags::all() const {
  std::vector<Flag> flags = single_;
  flags.push_back(file_flag_);
  return flags;
}

bool CostFlags::in_units() const { return file_.empty() && first_given(single_).empty(); }

schedule::Costs CostFlags::costs() const {
  if (!file_.empty()) {
    leave_out(single_, "--stage-costs gives the costs of every stage");
    return schedule::read_costs_csv(read_file(file_), source_name(file_));
  }
  require_number("--forward", each_.forward_s);
  require_number("--backward-input", each_.backward_input_s);
  require_number("--backward-weight", each_.backward_weight_s);
  require_number("--transfer", each_.transfer_s);
  return {.each = each_};
}

void PolicyFlags::add(Flags& app) {
  char const* const group = "The schedule";
  policy_flag_ = app.add("--policy", named_.name,
                         "Name of a schedule; stagger schedule --list shows them", "NAME", group);
  auto const count = [&](char const* flag, int& value, char const* what) {
    return app.add(flag, value, what, "N", group);
  };
  ranks_flag_ = count("--ranks", ranks_, "P");
  chunks_flag_ = count("--chunks", named_.chunks_per_rank,
                       "V, stages on each rank; default: the policy's own");
  microbatches_flag_ = count("--microbatches", microbatches_, "M");
  in_flight_flag_ = count("--in-flight", named_.limits.in_flight,
                          "Most microbatches, or slices of them, that a rank may hold");
  group_flag_ =
      count("--group", named_.group, "interleaved, zb-h1: microbatches that pass a chunk in turn");
  slices_flag_ =
      count("--slices", named_.slices,
            "seq-1f1b, auto: slices of the sequence; default 2 for seq-1f1b, 1 for auto");
  warmup_flag_ =
      app.add("--warmup", warmup_, "1f1b: minimal, deep or a gap; default minimal", "WORD", group);
  mapping_flag_ = app.add("--mapping", mapping_,
                          "forward-only, auto: looped, zigzag or bidirectional; default "
                          "looped",
                          "WORD", group);
  memory_flag_ = app.add("--memory", named_.limits.memory,
                         "auto: most activations on a rank, of a slice where it cuts, each held 1 "
                         "from F to I",
                         "A", group);
  share_flag_ = app.add("--weight-share", named_.limits.weight_share,
                        "auto: part of an activation held from I to W; default 0.5", "X", group);
}

std::vector<Flag> PolicyFlags::all() const {
  return {policy_flag_,    ranks_flag_,  chunks_flag_, microbatches_flag_,
          in_flight_flag_, group_flag_,  slices_flag_, warmup_flag_,
          mapping_flag_,   memory_flag_, share_flag_};
}

schedule::Table PolicyFlags::table(schedule::Costs const& costs) const {
  std::vector<std::string> names;
  for (auto const& entry : schedule::catalog) names.emplace_back(entry.name);
  require_word("--policy", named_.name, names);
  for (Flag const& flag : {ranks_flag_, microbatches_flag_}) {
    if (!flag.given()) refuse("--policy " + named_.name + " needs " + flag.name() + " too");
  }
  for (auto const& [flag, value] :
       {std::pair{ranks_flag_, ranks_}, std::pair{chunks_flag_, named_.chunks_per_rank},
        std::pair{microbatches_flag_, microbatches_},
        std::pair{in_flight_flag_, named_.limits.in_flight}, std::pair{group_flag_, named_.group},
        std::pair{slices_flag_, named_.slices}}) {
    require_count(flag, value);
  }
  for (auto const& [flag, takes] :
       {std::pair{group_flag_, &schedule::CatalogEntry::takes_group},
        std::pair{slices_flag_, &schedule::CatalogEntry::takes_slices},
        std::pair{warmup_flag_, &schedule::CatalogEntry::takes_warmup},
        std::pair{mapping_flag_, &schedule::CatalogEntry::takes_mapping},
        std::pair{memory_flag_, &schedule::CatalogEntry::takes_memory},
        std::pair{share_flag_, &schedule::CatalogEntry::takes_memory}}) {
    if (!flag.given() || named_.entry().*takes) continue;
    std::string words;
    for (auto const& entry : schedule::catalog)
      if (entry.*takes) (words += words.empty() ? "" : " and ") += entry.name;
    refuse(flag.name() + " is for " + words + "; leave it out for " + named_.name);
  }

  schedule::Named named = named_;
  if (warmup_ == "deep") {
    named.warmup = schedule::Warmup::deep;
  } else if (warmup_flag_.given() && warmup_ != "minimal") {
    int gap = 0;
    char const* const end = warmup_.data() + warmup_.size();
    auto const [stop, error] = std::from_chars(warmup_.data(), end, gap);
    if (error != std::errc{} || stop != end || gap < 1) {
      refuse("--warmup '" + warmup_ + "' cannot be used; give minimal, deep or a gap of 1 or more");
    }
    named.warmup = schedule::Warmup{gap};
  }
  if (mapping_flag_.given()) {
    require_word("--mapping", mapping_, {"looped", "zigzag", "bidirectional"});
    named.mapping = mapping_ == "looped"   ? schedule::Mapping::looped
                    : mapping_ == "zigzag" ? schedule::Mapping::zigzag
                                           : schedule::Mapping::bidirectional;
  }
  double const memory = named.limits.memory, share = named.limits.weight_share;
  if (memory_flag_.given() && !(memory > 0 && memory <= 1e300)) {
    require_number("--memory", memory);
    refuse("--memory 0 holds nothing; give 1 or more activations");
  }
  if (!(share >= 0 && share <= 1)) {
    refuse("--weight-share " + share_flag_.written() + " cannot be used; give 0 to 1");
  }
  named.costs = costs;
  return named.table({ranks_, microbatches_, named.chunks()});
}

std::vector<int> PolicyFlags::weight_versions() const {
  return schedule::weight_versions(named_, {ranks_, microbatches_});
}

void ChannelFlag::add(Flags& app) {
  app.add("--channels", word_,
          "How messages share links: per-peer | per-rank | independent; default per-peer", "WORD");
}

schedule::Channels ChannelFlag::channels() const {
  require_word("--channels", word_, {"per-peer", "per-rank", "independent"});
  return word_ == "per-peer"   ? schedule::Channels::per_peer
         : word_ == "per-rank" ? schedule::Channels::per_rank
                               : schedule::Channels::independent;
}

namespace {

/// The sentence of the library with the flag that does what it advises.
std::string in_flags(std::string sentence) {
  std::string const words = schedule::detail::old_letters;
  if (std::size_t const at = sentence.find(words); at != std::string::npos)
    sentence.replace(at, words.size(), "--letters torch-2.5");
  return sentence;
}

}  // namespace

void TableFiles::add(Flags& app) {
  flag_ = app.add(
      "--letters", word_,
      "torch | torch-2.5: what B stands for; default torch, where B is a whole backward and I "
      "and W are its halves. PyTorch up to 2.5 wrote B for I wherever it wrote a W too, and BW "
      "for a whole one",
      "WORD");
}

void TableFiles::require(bool files) const {
  static_cast<void>(letters());
  if (!files) leave_out({flag_}, "no table is read from a file");
}

schedule::Letters TableFiles::letters() const {
  require_word("--letters", word_, {"torch", "torch-2.5"});
  return word_ == "torch" ? schedule::Letters::torch : schedule::Letters::torch_2_5;
}

schedule::Table TableFiles::read(std::string const& path,
                                 std::vector<schedule::ShardCell>* shards) {
  File& file = files_[path];
  schedule::Letters const letters = this->letters();
  file.text = read_file(path);
  try {
    schedule::Table table = schedule::read_csv(file.text, source_name(path), shards, letters);
    file.rows = table.ranks();
    return table;
  } catch (stagger::Error const& error) {
    throw stagger::Error(error.code(), in_flags(error.what()));
  }
}

std::string TableFiles::message(std::string const& path, schedule::Table const& table,
                                schedule::Fault const& fault) const {
  std::string const sentence = in_flags(schedule::message(fault));
  File const& file = files_.at(path);
  if (fault.rank < 0 || fault.rank >= file.rows || fault.index < 0) return sentence;
  std::string const line = " (" + source_name(path) + ", line " + std::to_string(fault.rank + 1);
  if (fault.no_actions()) return sentence + line + ")";
  auto const row = table.row(fault.rank);
  auto const at = static_cast<std::size_t>(fault.index);
  if (at >= row.size() || !(row[at] == fault.action))
    return sentence;  // the fault is in the lowered table, which the file does not have
  std::size_t const column = schedule::column_of(file.text, fault.rank, fault.index, letters());
  return sentence + line + ", column " + std::to_string(column) + ")";
}

bool has_messages(schedule::Table const& table) {
  return std::any_of(table.actions.begin(), table.actions.end(),
                     [](schedule::Action const& a) { return schedule::is_message(a.kind); });
}

schedule::Fault prove(schedule::Table const& table, schedule::VerifyOptions const& options) {
  if (schedule::Fault const fault = schedule::verify(table, options)) return fault;
  if (has_messages(table)) return {};
  return schedule::verify(schedule::lower(table), options);
}

Json rows_json(schedule::Table const& table, std::vector<schedule::ShardCell> const& shards) {
  Json rows = Json::array();
  Json cells = Json::array();
  std::string cell;
  for (char const c : schedule::write_csv(table, shards)) {
    if (c != ',' && c != '\n') {
      cell += c;
      continue;
    }
    if (!cell.empty()) cells.push_back(std::exchange(cell, {}));
    if (c == '\n') rows.push_back(std::exchange(cells, Json::array()));
  }
  return rows;
}

std::string dump(Json const& json) { return json.dump(2) + "\n"; }

}  // namespace tool
