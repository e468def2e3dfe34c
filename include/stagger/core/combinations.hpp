// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Which features of pipelines go together: the one table of all rules, from which compile
///         errors, run-time errors and docs/combinations.md are made.

#include <cstdint>
#include <string_view>

#include <stagger/core/combination_rules.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/features.hpp>

namespace stagger::detail {

/// Why features do not go together.
enum class Verdict : std::uint8_t {
  law,        ///< a promise would break, whatever is built
  not_built,  ///< it could work
  need,       ///< it works with something else beside it
  no_effect,  ///< nothing is refused, but one of them changes nothing
};

enum class Rule : std::uint8_t {
#define STAGGER_RULE(name, ...) name,
  STAGGER_RULES(STAGGER_RULE)
#undef STAGGER_RULE
      none,
};

/// A rule of the table.
struct Combination {
  Features all;   // of these together
  Features mend;  // one of these mends that
  Verdict verdict;
  char const* subject;
  char const* says;

  [[nodiscard]] constexpr bool holds(Features features) const noexcept {
    return features.has(all) && !features.has_any(mend);
  }
  [[nodiscard]] constexpr bool refuses(Features features) const noexcept {
    return verdict != Verdict::no_effect && holds(features);
  }
};

namespace feature {
inline constexpr Combination rules[] = {
#define STAGGER_RULE(name, verdict, all, mend, subject, says, why) \
  {all, mend, Verdict::verdict, subject, says},
    STAGGER_RULES(STAGGER_RULE)
#undef STAGGER_RULE
};
}  // namespace feature

/// The first rule that refuses a pipeline with these features; Rule::none: none does.
[[nodiscard]] constexpr Rule refusing(Features features) noexcept {
  unsigned rule = 0;
  for (Combination const& known : feature::rules) {
    if (known.refuses(features)) break;
    ++rule;
  }
  return static_cast<Rule>(rule);
}

/// Likewise by the rules that the compiler tells, for features that types of policies say.
[[nodiscard]] constexpr Rule refusing_types(Features features) noexcept {
  Rule const rule = refusing(features);
  return rule <= Rule::kernel_on_host ? rule : Rule::none;
}

/// Its static_assert says the sentence of a rule.
template <Rule rule> struct NotCombined {
  template <Rule other> static constexpr bool told = rule != other;
  static_assert(told<Rule::placement_ignored>, "stagger: this device" STAGGER_PLACEMENT_IGNORED);
  static_assert(told<Rule::flush_missing>, "stagger: this schedule" STAGGER_FLUSH_MISSING);
  static_assert(told<Rule::server_missing>, "stagger: this staleness model" STAGGER_SERVER_MISSING);
  static_assert(told<Rule::server_idle>, "stagger: nothing" STAGGER_SERVER_IDLE);
  static_assert(told<Rule::cut_twice>, "stagger: these stages" STAGGER_CUT_TWICE);
  static_assert(told<Rule::kernel_on_one_device>,
                "stagger: this optimizer" STAGGER_KERNEL_ON_ONE_DEVICE);
  static_assert(told<Rule::kernel_on_host>, "stagger: this optimizer" STAGGER_KERNEL_ON_HOST);
  static_assert(told<Rule::profiled_stream>, "stagger: a profiler" STAGGER_STREAM_PROFILED);
};

/// Whether a rule refuses features.
[[nodiscard]] constexpr bool refuses(Rule rule, Features features) noexcept {
  return feature::rules[static_cast<unsigned>(rule)].refuses(features);
}

/// Refuses features by one rule, where not all features of the pipeline are known.
/// @param subject  begins the sentence in place of the rule's own subject; empty: it does not
/// @throws Error  with the sentence of the rule
[[gnu::cold]] inline void require_rule(Rule rule, Features features, std::string_view subject = {},
                                       Errc code = Errc::bad_configuration) {
  Combination const& known = feature::rules[static_cast<unsigned>(rule)];
  if (known.refuses(features))
    raise(code, subject.empty() ? std::string_view(known.subject) : subject, known.says);
}

/// Refuses a pipeline whose features do not go together.
/// @param features  all of them, since some mend what others break
/// @throws Error  with the sentence of the first rule that refuses them
[[gnu::cold]] inline void require_combination(Features features) {
  Rule const rule = refusing(features);
  if (rule != Rule::none) require_rule(rule, features);
}

}  // namespace stagger::detail
