// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Options of the engine.

#include <cstdint>
#include <optional>
#include <string>

#include <stagger/core/error.hpp>
#include <stagger/program/replica_counts.hpp>

namespace stagger {

/// Marks the options: `using policy_tag = stagger::OptionsTag;`.
struct OptionsTag {};

/// What happens to a training step in which a gradient is NaN or infinite, or their norm is.
enum class NonFinite : std::uint8_t {
  fail,    ///< the step fails with Errc::not_finite; as after any error, nothing was updated
  skip,    ///< the step succeeds without an update, and `Metrics::skipped` counts it; only where
           ///< all stages update together at the end of the step
  ignore,  ///< nobody looks: the optimizer uses these gradients
};

[[nodiscard]] constexpr char const* name(NonFinite what) noexcept {
  return what == NonFinite::fail ? "fail" : what == NonFinite::skip ? "skip" : "ignore";
}

namespace detail {
/// The end of the sentence of Errc::not_finite.
inline constexpr char const* not_finite_remedy =
    ": lower the optimizer's rate, look for what divides by 0, or choose another "
    "Options::non_finite";
inline constexpr char const* no_update = "nothing was updated";
/// Ends a step whose update is left out.
/// @param which   a gradient of a layer, or the norm of all
/// @param beside  what else is known of it
/// @param left    what was not done
[[noreturn]] [[gnu::cold]] inline void refuse_update(std::string const& which,
                                                     std::string const& beside, std::int64_t steps,
                                                     char const* left = no_update) {
  raise(Errc::not_finite, which, " is not finite", beside, ", so ", left, " after step ", steps,
        not_finite_remedy);
}
/// Likewise for the norm of gradients that are all finite.
[[noreturn]] [[gnu::cold]] inline void refuse_norm(std::int64_t steps,
                                                   char const* left = no_update) {
  refuse_update("the norm of all gradients", ", although each of them is", steps, left);
}
/// In words, the first microbatch whose loss is not finite either.
[[nodiscard]] [[gnu::cold]] inline std::string nor_is_loss(int microbatch) {
  return text(", nor is the loss of microbatch ", microbatch);
}
}  // namespace detail

/// Given to `Pipeline::with` like a policy.
struct Options {
  using policy_tag = OptionsTag;

  std::optional<double>
      clip_norm{};         ///< gradients are scaled down to this global 2-norm where they exceed it
  std::uint64_t seed = 0;  ///< the seed of everything random: `Context::random_seed`
  double deadline_s =
      60;  ///< longest time in which no rank moves before the step ends in an error, seconds
  bool recompute =
      false;  ///< keep only stage inputs from forward on; run forward again before backward
  bool check_recompute =
      false;  ///< end a step in which a repeated forward gives other bits than the first one; on
  ///< hosts, for outputs that are numbers, tensors, vectors or have `fields()`. Others are
  ///< refused. Without recompute nothing is repeated
  bool record = false;  ///< measure each action of a step, for `timeline()`
  std::optional<std::uint32_t>
      spare_slots{};    ///< slots of a message beyond those that its consumer occupies, so that a
                        ///< producer can run ahead; unset: one, or as many as are needed so that
                        ///< equally fast ranks never wait. 0 or 1 save memory, the number of
                        ///< microbatches avoids every wait
  Replicas replicas{};  ///< ranks that share each position (data parallelism); none: one each
  NonFinite non_finite = NonFinite::fail;  ///< what a gradient that is not finite does to its step
};

namespace detail {
/// @throws Error  bad_configuration for a norm that would turn gradients around, or make them 0
[[gnu::cold]] inline void require_clip_norm(Options const& options) {
  if (options.clip_norm && !(*options.clip_norm > 0))
    raise(Errc::bad_configuration, "gradients cannot be clipped to a norm of ", *options.clip_norm,
          "; use a positive norm");
}
}  // namespace detail

}  // namespace stagger
