// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The options of a parameter server.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/collective/detail/same_workers.hpp>
#include <stagger/core/combinations.hpp>
#include <stagger/core/error.hpp>

namespace stagger::collective {

/// What a server does when a worker fails, during a stream or between steps. Nobody waits for one
/// that has left, until it joins again.
enum class OnFailure : std::uint8_t {
  fail_fast,  ///< the streams of all others end too
  go_on,      ///< the others go on without it; what it has pushed stays, and it may come back
};

/// The options of a parameter server.
struct ServerOptions {
  int workers = 1;  ///< >= 1, each a pipeline
  int shards = 1;   ///< >= 1; layers are distributed over them; each has its own lock
  /// [workers] the factor by which the server multiplies each worker's gradients, or the changes of
  /// its local steps: its share of the data. Empty: 1 / workers each. With 1 for each, every push
  /// is a full step.
  std::vector<double> weights{};
  /// Whether changes that workers push are averaged: each worker multiplies its own by its weight
  /// before it pushes them. Otherwise they are summed, as in HetPipe.
  bool average_changes = false;
  /// Whether the server records what it does with each layer, for ParameterServer::log. The memory
  /// for that grows with each push. It is not in the folder of a durable server: a server that is
  /// started with one records what it does itself.
  bool log = false;
  OnFailure on_failure = OnFailure::fail_fast;
  /// A folder, or empty. Pushes are written there before they are acknowledged, and a server that
  /// is started with the folder of an earlier one goes on from its state.
  std::string durable{};
  /// The name of the run, of at most 64 bytes. A worker of another process and the folder of an
  /// earlier server are refused unless they have the same. Empty: it has none.
  std::string run{};
};

namespace detail {

/// Most workers of one server; a worker in another process allocates tables for at most this many.
inline constexpr int most_workers = 1 << 16;

/// The features that the options say.
[[nodiscard]] inline stagger::detail::Features option_features(ServerOptions const& options) {
  namespace feature = stagger::detail::feature;
  return stagger::detail::Features{}
      .with(feature::durable, !options.durable.empty())
      .with(feature::logs, options.log)
      .with(feature::goes_on, options.on_failure == OnFailure::go_on);
}
/// A server with a folder, in words.
[[nodiscard]] [[gnu::cold]] inline std::string keeper(ServerOptions const& options) {
  return text("a parameter server that keeps its layers in the folder ", options.durable);
}

/// @throws Error  bad_configuration for options that are out of range or exclude each other
[[nodiscard]] [[gnu::cold]] inline ServerOptions possible(ServerOptions const& options) {
  if (options.workers < 1 || options.workers > most_workers || options.shards < 1)
    raise(Errc::bad_configuration, "a parameter server of ", options.workers, " workers and ",
          options.shards, " shards cannot be made; use at least 1 of each, and at most ",
          most_workers, " workers");
  require_run_name(options.run);
  auto const count = static_cast<std::size_t>(options.workers);
  if (!options.weights.empty() && options.weights.size() != count)
    raise(Errc::bad_configuration, options.weights.size(), " weights were given for ",
          counted(options.workers, "worker"), "; give one for each, or none");
  for (double const weight : options.weights)
    if (!(weight > 0 && weight <= 1))
      raise(Errc::bad_configuration, "gradients of a worker cannot be weighted by ", weight,
            "; use its share of the data, more than 0 and at most 1");
  return options;
}

/// @throws Error  bad_configuration for a staleness model that does not work with the options
[[gnu::cold]] inline void require_possible(ServerOptions const& options, WorkerRules const& rules) {
  namespace feature = stagger::detail::feature;
  require_rule(stagger::detail::Rule::durable_late_layers,
               option_features(options).with(feature::late, rules.late != nullptr),
               keeper(options));
  if (rules.late != nullptr && !options.durable.empty() && late_words(rules).empty())
    raise(Errc::bad_configuration,
          "a parameter server cannot keep the numbers of this staleness model in the folder ",
          options.durable,
          "; give each of its policies 'auto fields() const { return std::tie(share); }' with all "
          "of them");
}

}  // namespace detail
}  // namespace stagger::collective
