// SPDX-License-Identifier: Apache-2.0
#pragma once
// Flags that several commands share: the schedule, costs and channels.

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/csv.hpp>
#include <stagger/schedule/named.hpp>
#include <stagger/schedule/proof/bound.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/schedule/table.hpp>

#include "flags.hpp"

namespace tool {

using Json = nlohmann::ordered_json;  // keys in the order of the documentation

/// --forward, --backward-input, --backward-weight, --transfer, or --stage-costs.
class CostFlags {
 public:
  void add(Flags& app);

  /// @throws stagger::Error for costs that are not finite and not negative
  [[nodiscard]] stagger::schedule::Costs costs() const;

  /// True if no cost was given, so that times are in units of F.
  [[nodiscard]] bool in_units() const;

  [[nodiscard]] std::vector<Flag> all() const;

 private:
  stagger::schedule::StageCosts each_{};
  std::string file_{};
  std::vector<Flag> single_{};
  Flag file_flag_{};
};

/// --policy, and the flags that determine its table.
class PolicyFlags {
 public:
  void add(Flags& app);

  [[nodiscard]] bool given() const { return !named_.name.empty(); }
  [[nodiscard]] std::string const& policy() const { return named_.name; }

  /// Number of versions of the weights that each rank keeps under the policy.
  [[nodiscard]] std::vector<int> weight_versions() const;

  /// The limits that the table has to obey; zero: no limit.
  [[nodiscard]] stagger::schedule::Limits limits() const { return named_.limits; }

  [[nodiscard]] std::vector<Flag> all() const;

  /// @throws stagger::Error for flags that the policy does not have, and for shapes that it refuses
  [[nodiscard]] stagger::schedule::Table table(stagger::schedule::Costs const& costs) const;

 private:
  stagger::schedule::Named named_{};
  int ranks_ = 0, microbatches_ = 0;
  std::string warmup_{}, mapping_{};
  Flag policy_flag_{}, ranks_flag_{}, chunks_flag_{}, microbatches_flag_{}, in_flight_flag_{},
      group_flag_{}, slices_flag_{}, warmup_flag_{}, mapping_flag_{}, memory_flag_{}, share_flag_{};
};

/// --channels.
class ChannelFlag {
 public:
  void add(Flags& app);
  [[nodiscard]] stagger::schedule::Channels channels() const;

 private:
  std::string word_ = "per-peer";
};

/// Reads tables from CSV, in the letters of --letters.
class TableFiles {
 public:
  void add(Flags& app);

  /// Checks the letters, which nothing reads in a command without a file.
  /// @param files  whether a file is read
  void require(bool files) const;

  /// @param path    - is standard input
  /// @param shards  receives the UNSHARD and RESHARD cells; null: they are skipped
  /// @throws stagger::Error naming file, line, column and value
  [[nodiscard]] stagger::schedule::Table read(
      std::string const& path, std::vector<stagger::schedule::ShardCell>* shards = nullptr);

  /// Describes a fault of a table from a file, with its line, and its action's column, in the file.
  [[nodiscard]] std::string message(std::string const& path, stagger::schedule::Table const& table,
                                    stagger::schedule::Fault const& fault) const;

 private:
  struct File {
    std::string text{};
    int rows = 0;
  };
  [[nodiscard]] stagger::schedule::Letters letters() const;

  std::string word_ = "torch";
  Flag flag_{};
  std::map<std::string, File> files_{};  // standard input can be read only once
};

/// True for a fault that means that the table has another shape than requested, rather than that it
/// is illegal.
[[nodiscard]] inline bool unreadable(stagger::schedule::Fault const& fault) {
  return fault.kind == stagger::schedule::FaultKind::parse ||
         fault.kind == stagger::schedule::FaultKind::out_of_range;
}

[[nodiscard]] bool has_messages(stagger::schedule::Table const& table);

/// The first fault of a table, which is lowered first if it has no messages.
[[nodiscard]] stagger::schedule::Fault prove(stagger::schedule::Table const& table,
                                             stagger::schedule::VerifyOptions const& options);

/// The rows of a table as lists of CSV cells.
/// @param shards  UNSHARD and RESHARD cells that were read with the table
[[nodiscard]] Json rows_json(stagger::schedule::Table const& table,
                             std::vector<stagger::schedule::ShardCell> const& shards = {});

/// A JSON value as text.
[[nodiscard]] std::string dump(Json const& json);

}  // namespace tool
