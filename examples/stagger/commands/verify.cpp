// SPDX-License-Identifier: Apache-2.0
// stagger verify: proves that a table is legal, or prints its first fault.

#include <string>

#include "../command.hpp"
#include "../pipeline.hpp"

namespace tool {

namespace {

namespace schedule = stagger::schedule;

class Verify final : public Command {
 public:
  void flags(Flags& app) override {
    app.add("FILE", file_, "Table as CSV, with or without messages; - is standard input");
    tables_.add(app);
    channels_.add(app);
    in_flight_flag_ =
        app.add("--in-flight", in_flight_, "Most microbatches that a rank may hold", "N");
    ranks_flag_ = app.add("--ranks", ranks_, "P that the table should have", "N");
    stages_flag_ = app.add("--stages", stages_, "S that the table should have", "N");
    microbatches_flag_ =
        app.add("--microbatches", microbatches_, "M that the table should have", "N");
    add_formats(app, {"text", "json"});
    app.footer(
        "Example: printf '0F0,0B0\\n1B0,1F0\\n' | stagger verify -\n"
        "  no: order: 1B0 (rank 1, action 0) stands before an action of the same rank that it\n"
        "  needs; move it down (standard input, line 2, column 1)");
  }

  Answer run() override {
    bool const json = format() == "json";
    if (file_.empty()) refuse("verify needs a FILE, or - for standard input");
    schedule::VerifyOptions options{.channels = channels_.channels(), .in_flight = in_flight_};
    require_count(in_flight_flag_, in_flight_);
    require_count(ranks_flag_, ranks_);
    require_count(stages_flag_, stages_);
    require_count(microbatches_flag_, microbatches_);
    schedule::Table table;
    try {
      table = tables_.read(file_);
    } catch (stagger::Error const& error) {
      if (!json || error.code() != stagger::Errc::bad_data) throw;
      return {dump({{"ok", false},
                    {"fault",
                     {{"kind", "parse"},
                      {"rank", nullptr},
                      {"position", nullptr},
                      {"action", nullptr},
                      {"message", error.what()}}},
                    {"ranks", nullptr},
                    {"stages", nullptr},
                    {"microbatches", nullptr},
                    {"peak_in_flight", Json::array()}}),
              error.what(), 2};
    }
    int const rows = table.ranks();
    if (ranks_ > 0 && rows > ranks_) {
      refuse(source_name(file_) + ", line " + std::to_string(ranks_ + 1) + ", column 1: row " +
             std::to_string(ranks_) + " is one more than --ranks " + std::to_string(ranks_) +
             " allows");
    }
    if (ranks_ > 1 << 24) refuse("--ranks " + std::to_string(ranks_) + " is more than 2^24");
    while (table.ranks() < ranks_) table.begin_row();
    if (stages_ > 0) table.stages = stages_;
    if (microbatches_ > 0) table.microbatches = microbatches_;

    schedule::Fault const fault = prove(table, options);
    auto const peak = schedule::peak_in_flight(table);
    std::string const kind = schedule::name(fault.kind);
    std::string const message = tables_.message(file_, table, fault);
    Answer answer;
    if (fault) answer.exit_code = unreadable(fault) ? 2 : 1;
    if (answer.exit_code == 2) {
      answer.why = source_name(file_) + ": " + message;
    }
    if (json) {
      Json const action = fault.no_actions()
                              ? Json(nullptr)
                              : Json(schedule::to_string(fault.action, table.slices > 1));
      Json const found = {{"kind", kind},
                          {"rank", fault.rank},
                          {"position", fault.index},
                          {"action", action},
                          {"message", message}};
      answer.text = dump({{"ok", !fault},
                          {"fault", fault ? found : Json(nullptr)},
                          {"ranks", table.ranks()},
                          {"stages", table.stages},
                          {"microbatches", table.microbatches},
                          {"peak_in_flight", peak}});
    } else if (fault) {
      if (answer.exit_code == 1) answer.text = "no: " + kind + ": " + message + "\n";
    } else {
      answer.text =
          stagger::text("ok: ", stagger::counted(table.ranks(), "rank"), ", ",
                        stagger::counted(table.stages, "stage"), ", ",
                        stagger::counted(table.microbatches, "microbatch"), "; at most in flight:");
      for (int const p : peak) answer.text += stagger::text(" ", p);
      answer.text += "\n";
    }
    return answer;
  }

 private:
  std::string file_{};
  TableFiles tables_{};
  ChannelFlag channels_{};
  int in_flight_ = 0, ranks_ = 0, stages_ = 0, microbatches_ = 0;
  Flag in_flight_flag_{}, ranks_flag_{}, stages_flag_{}, microbatches_flag_{};
};

Registered<Verify> const verify_registered{2, "verify", "Prove or refute a table"};

}  // namespace

}  // namespace tool
