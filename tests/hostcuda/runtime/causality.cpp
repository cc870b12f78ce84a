// A step comes before a later one if one thread does both, if they touch the same memory and one writes, if threads met
// in between, or by way of others. Of two steps that touch the same memory and that nothing else orders, the order is
// an accident: a search must try the other one. Abdulla, Aronis, Jonsson, Sagonas: "Optimal Dynamic Partial Order
// Reduction" (source sets).
#include "causality.h"

#include <algorithm>

namespace kv_host {

bool are_independent(const Touches& one, const Touches& other) {
  for (const Touch& a : one)
    for (const Touch& b : other)
      if ((a.writes || b.writes) && a.begin < b.end && b.begin < a.end) return false;
  return true;
}

size_t& Causality::at(Clock& clock, uint32_t thread) {
  if (thread >= clock.size()) clock.resize(thread + 1);
  return clock[thread];
}

void Causality::join(Clock& clock, const Clock& other) {
  if (other.size() > clock.size()) clock.resize(other.size());
  for (size_t thread = 0; thread < other.size(); ++thread) clock[thread] = std::max(clock[thread], other[thread]);
}

bool Causality::comes_before(size_t first, const Step& second) const {
  const uint32_t thread = steps_[first].thread;
  return thread < second.clock.size() && first < second.clock[thread];
}

void Causality::clear() {
  steps_.clear();
  now_.clear();
}

std::vector<size_t> Causality::add(uint32_t thread, const Touches& touches) {
  if (thread >= now_.size()) now_.resize(thread + 1);
  Step last = {thread, touches, now_[thread]};
  std::vector<size_t> reversible;
  for (size_t earlier = steps_.size(); earlier-- > 0;) {
    const Step& step = steps_[earlier];
    if (step.thread == thread || are_independent(step.touches, touches)) continue;
    if (!comes_before(earlier, last)) reversible.push_back(earlier);
    join(last.clock, step.clock);
  }
  at(last.clock, thread) = steps_.size() + 1;
  now_[thread] = last.clock;
  steps_.push_back(std::move(last));
  return reversible;
}

void Causality::meet(const std::vector<uint32_t>& threads) {
  Clock together;
  for (uint32_t thread : threads)
    if (thread < now_.size()) join(together, now_[thread]);
  for (uint32_t thread : threads) {
    if (thread >= now_.size()) now_.resize(thread + 1);
    now_[thread] = together;
  }
}

std::vector<uint32_t> Causality::instead_of(size_t step) const {
  // What doesn't need `step`, and the last step: an execution that could have gone on from there. Who can begin it?
  std::vector<size_t> onwards;
  for (size_t later = step + 1; later < steps_.size(); ++later)
    if (later + 1 == steps_.size() || !comes_before(step, steps_[later])) onwards.push_back(later);
  std::vector<uint32_t> first;
  for (size_t i = 0; i < onwards.size(); ++i) {
    const bool needs_another = std::any_of(onwards.begin(), onwards.begin() + (ptrdiff_t)i, [&](size_t earlier) {
      return comes_before(earlier, steps_[onwards[i]]);
    });
    if (!needs_another) first.push_back(steps_[onwards[i]].thread);
  }
  return first;
}

}  // namespace kv_host
