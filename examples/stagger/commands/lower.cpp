// SPDX-License-Identifier: Apache-2.0
// stagger lower: adds sends and receives to a table.

#include <string>

#include <stagger/schedule/csv.hpp>
#include <stagger/schedule/proof/lower.hpp>

#include "../command.hpp"
#include "../pipeline.hpp"

namespace tool {

namespace {

namespace schedule = stagger::schedule;

class Lower final : public Command {
 public:
  void flags(Flags& app) override {
    app.add("FILE", file_, "Table of compute actions as CSV; - is standard input");
    tables_.add(app);
    channels_.add(app);
    add_formats(app, {"torch-comms-csv", "json"});
    app.footer(
        "Example: printf '0F0,0B0\\n1F0,1B0\\n' | stagger lower -\n"
        "  0F0,0SEND_F0,0RECV_B0,0B0\n"
        "  1RECV_F0,1F0,1B0,1SEND_B0");
  }

  Answer run() override {
    bool const json = format() == "json";
    if (file_.empty()) refuse("lower needs a FILE, or - for standard input");
    auto const channels = channels_.channels();
    std::vector<schedule::ShardCell> shards;
    schedule::Table const table = tables_.read(file_, &shards);
    if (has_messages(table)) {
      refuse(source_name(file_) + " holds messages already; lower takes compute actions only");
    }
    schedule::Fault fault = schedule::verify(table);
    schedule::Table lowered;
    if (!fault) {
      lowered = schedule::lower(table);
      fault = schedule::verify(lowered, {.channels = channels});
    }
    if (fault) {
      std::string const kind = schedule::name(fault.kind);
      return {
          {}, source_name(file_) + ": " + kind + ": " + tables_.message(file_, table, fault), 1};
    }
    if (!json) return {schedule::write_csv(lowered, shards)};
    return {dump({{"ranks", lowered.ranks()},
                  {"stages", lowered.stages},
                  {"microbatches", lowered.microbatches},
                  {"rows", rows_json(lowered, shards)}})};
  }

 private:
  std::string file_{};
  TableFiles tables_{};
  ChannelFlag channels_{};
};

Registered<Lower> const lower_registered{3, "lower", "Add the messages to a table"};

}  // namespace

}  // namespace tool
