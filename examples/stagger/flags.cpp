// SPDX-License-Identifier: Apache-2.0
#include "flags.hpp"

#include <vector>

#include <CLI/CLI.hpp>

#include <stagger/core/nearest.hpp>

#include "../command_line.hpp"
#include "command.hpp"

namespace tool {

namespace {

/// Refuses an unknown flag, and suggests the nearest one.
void refuse_unknown(CLI::App const& app, std::string const& program) {
  auto const unknown = app.remaining();
  if (unknown.empty()) return;
  std::string const command = program.substr(program.find(' ') + 1);
  std::string const word = unknown.front().substr(0, unknown.front().find('='));
  if (word.size() < 2 || word.front() != '-') {
    refuse(command + " has no use for the argument '" + word + "'; " + program +
           " --help shows what it takes");
  }
  std::vector<std::string> flags;
  for (CLI::Option const* option : app.get_options()) {
    for (auto const& name : option->get_lnames()) flags.push_back("--" + name);
  }
  refuse(command + " has no flag '" + word + "'; the nearest is '" + stagger::nearest(word, flags) +
         "'");
}

}  // namespace

bool Flag::given() const { return option_->count() > 0; }
std::string Flag::name() const { return option_->get_name(); }
std::string Flag::written() const { return option_->results().front(); }

Flags::Flags(std::string const& program, std::string const& summary)
    : program_(program), app_(std::make_unique<CLI::App>(summary, program)) {
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app_->allow_extras();
}

Flags::~Flags() = default;

template <class T>
Flag Flags::add(std::string const& name, T& value, std::string const& what, std::string const& type,
                std::string const& group) {
  CLI::Option* const option = app_->add_option(name, value, what);
  if (!type.empty()) option->type_name(type);
  if (!group.empty()) option->group(group);
  return Flag(option);
}
template Flag Flags::add(std::string const&, std::string&, std::string const&, std::string const&,
                         std::string const&);
template Flag Flags::add(std::string const&, int&, std::string const&, std::string const&,
                         std::string const&);
template Flag Flags::add(std::string const&, double&, std::string const&, std::string const&,
                         std::string const&);

Flag Flags::add(std::string const& name, bool& value, std::string const& what) {
  return Flag(app_->add_flag(name, value, what));
}

void Flags::footer(std::string const& text) { app_->footer(text); }

std::optional<std::string> Flags::read(int argc, char const* const* argv) {
  try {
    app_->parse(argc, argv);
  } catch (CLI::Success const&) {
    return app_->help();
  } catch (CLI::ParseError const& error) {
    refuse_unknown(*app_, program_);
    refuse(cli::error_message(*app_, error) + "; " + program_ + " --help shows what there is");
  }
  refuse_unknown(*app_, program_);
  return std::nullopt;
}

}  // namespace tool
