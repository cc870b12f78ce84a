// Depth first over the choices at switch points. The memory of an execution is not kept: to take another choice, all
// runs anew from the beginning.
//
// Schedules that differ only in the order of steps that don't touch the same memory lead to the same end. Of these one
// is run to its end, by sleep sets (Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems",
// chapter 5): a step that was tried at a choice stays asleep below the other choices until one touches what it touched.
// All states between steps are still reached. Where nobody looks at these, another thread is tried at a choice only if
// a later step turns out to touch what the taken one touched (causality.cpp); else threads that have nothing to do with
// each other would be tried in every order, if only to find that out.
//
// Modules must be instrumented: threads are interrupted before every atomic and every access of global memory that some
// launch may write. What a thread does from its beginning, or from a barrier, up to such a place concerns nobody else;
// it is done at once and is no step.
#include "explorer.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "causality.h"
#include "faults.h"

namespace kv_host {

namespace {

std::vector<Step> steps;  // of the last execution

uint32_t number_of(const Thread* thread) { return thread->id - engine.first_id_of_run; }

size_t position_of(const ReadyThreads& ready, uint32_t number) {
  for (size_t position = 0; position < ready.count(); ++position)
    if (number_of(ready.at(position)) == number) return position;
  note_fault(FaultKind::kNotDeterministic, nullptr, "thread %u can't go on at step %zu, where it did before", number,
             steps.size());
  return kStop;
}

// A check depends on memory alone, so no state is checked twice.
class Checks {
 public:
  Checks(const std::vector<Region>& regions, int (*check)()) : regions_(regions), check_(check) {}

  bool holds() {
    if (check_ == nullptr || !passed_.insert(digest()).second) return true;
    return check_() == 0;
  }

 private:
  uint64_t digest() const {
    uint64_t mixed = 0;
    for (const Region& region : regions_) {
      for (size_t at = 0; at < region.bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, region.begin + at, std::min(sizeof word, region.bytes - at));
        mixed = (mixed ^ word) * 0x9E3779B97F4A7C15ULL;
        mixed ^= mixed >> 29;
      }
    }
    return mixed;
  }

  const std::vector<Region>& regions_;
  int (*check_)();
  std::unordered_set<uint64_t> passed_;
};

class Interruptible : public Schedule {
 public:
  size_t last_of(size_t count) override { return count - 1; }
  bool switches(Point) override { return true; }

  size_t next(const ReadyThreads& ready) override {
    for (size_t position = 0; position < ready.count(); ++position)
      if (ready.at(position)->stands_at == 0) return position;
    const size_t position = choose(ready);
    if (position != kStop) steps.push_back({number_of(ready.at(position)), ready.at(position)->stands_at});
    return position;
  }

 protected:
  virtual size_t choose(const ReadyThreads& ready) = 0;

  // Whether the thread of the last step stands ready for another.
  static bool last_can_go_on(const ReadyThreads& ready) {
    if (steps.empty()) return false;
    for (size_t position = 0; position < ready.count(); ++position)
      if (number_of(ready.at(position)) == steps.back().thread) return true;
    return false;
  }
};

class Search final : public Interruptible {
 public:
  Search(const SearchPlan& plan, Checks& between) : plan_(plan), between_(between) {}

  void touches(uintptr_t begin, uintptr_t end, bool writes) override {
    choices_[depth_ - 1].touched.push_back({begin, end, writes});
  }

  void begin_execution() {
    depth_ = ended_ = 0;
    causality_.clear();
    cut_short = check_failed = false;
    steps.clear();
  }

  bool watches() const override { return true; }

  // Who arrives last has done its step; nobody goes on with one before all have met.
  void meets(const std::vector<Thread*>& threads) override {
    end_step();
    std::vector<uint32_t> numbers;
    for (const Thread* thread : threads) numbers.push_back(number_of(thread));
    causality_.meet(numbers);
  }

  void end_execution() { end_step(); }

  // Another choice at the last place that has one left.
  bool turn_back() {
    while (!choices_.empty()) {
      Choice& last = choices_.back();
      Option& taken = last.options[last.taken];
      taken.is_tried = true;
      last.tried.push_back({taken.thread, last.touched});
      for (last.taken = 0; last.taken < last.options.size(); ++last.taken)
        if (last.options[last.taken].is_wanted && !last.options[last.taken].is_tried) return true;
      choices_.pop_back();
    }
    return false;
  }

  bool cut_short = false;
  bool check_failed = false;

 private:
  size_t choose(const ReadyThreads& ready) override {
    end_step();
    if (depth_ != 0 && !between_.holds()) {
      check_failed = true;
      return kStop;
    }
    if (depth_ == choices_.size()) {
      Choice choice = new_choice(ready);
      if (choice.options.empty()) {
        cut_short = true;
        return kStop;
      }
      choices_.push_back(std::move(choice));
    }
    Choice& choice = choices_[depth_++];
    choice.touched.clear();
    return position_of(ready, choice.options[choice.taken].thread);
  }

  struct Sleeper {
    uint32_t thread;
    Touches touched;
  };

  struct Option {
    uint32_t thread;
    bool is_wanted, is_tried;
  };

  struct Choice {
    std::vector<Option> options;  // first the thread that ran last, if it can go on; others by number
    bool could_go_on = false;
    size_t taken = 0;
    long preemptions = 0;         // before this choice
    Touches touched;              // by the step that was taken
    std::vector<Sleeper> asleep;  // tried before and still the same step
    std::vector<Sleeper> tried;   // here
  };

  Choice new_choice(const ReadyThreads& ready) const {
    Choice choice;
    choice.could_go_on = last_can_go_on(ready);
    if (!choices_.empty()) {
      const Choice& parent = choices_.back();
      choice.preemptions = parent.preemptions + (parent.could_go_on && parent.taken != 0);
      if (plan_.reduces) {
        add_sleepers(parent.asleep, parent, choice);
        add_sleepers(parent.tried, parent, choice);
      }
    }
    std::vector<uint32_t> threads;
    for (size_t position = 0; position < ready.count(); ++position)
      threads.push_back(number_of(ready.at(position)));
    std::sort(threads.begin(), threads.end());
    if (choice.could_go_on) {
      auto place = std::find(threads.begin(), threads.end(), steps.back().thread);
      std::rotate(threads.begin(), place, place + 1);
      if (plan_.preemptions >= 0 && choice.preemptions >= plan_.preemptions) threads.resize(1);
    }
    for (uint32_t thread : threads) {
      if (is_asleep(choice, thread)) continue;
      const bool is_wanted = !leaves_out() || choice.options.empty();
      choice.options.push_back({thread, is_wanted, false});
    }
    return choice;
  }

  // Nobody looks at states between steps, so choices may be left out.
  bool leaves_out() const { return plan_.reduces && plan_.at_each_step == nullptr; }

  static bool is_asleep(const Choice& choice, uint32_t thread) {
    return std::any_of(choice.asleep.begin(), choice.asleep.end(),
                       [=](const Sleeper& sleeper) { return sleeper.thread == thread; });
  }

  // What the last step touched is known now: where it could have come before an earlier one, that is to be tried.
  void end_step() {
    if (!leaves_out() || ended_ == depth_) return;
    const Choice& last = choices_[ended_++];
    for (size_t earlier : causality_.add(last.options[last.taken].thread, last.touched))
      want_one_of(causality_.instead_of(earlier), choices_[earlier]);
  }

  static void want_one_of(const std::vector<uint32_t>& threads, Choice& choice) {
    Option* candidate = nullptr;
    for (uint32_t thread : threads) {
      if (is_asleep(choice, thread)) return;  // it was tried where the choice's state came about in another way
      for (Option& option : choice.options) {
        if (option.thread != thread) continue;
        if (option.is_wanted) return;
        if (candidate == nullptr) candidate = &option;
      }
    }
    if (candidate != nullptr) {
      candidate->is_wanted = true;
    } else {
      for (Option& option : choice.options) option.is_wanted = true;
    }
  }

  static void add_sleepers(const std::vector<Sleeper>& from, const Choice& parent, Choice& choice) {
    for (const Sleeper& sleeper : from)
      if (are_independent(sleeper.touched, parent.touched)) choice.asleep.push_back(sleeper);
  }

  const SearchPlan& plan_;
  Checks& between_;
  std::vector<Choice> choices_;
  size_t depth_ = 0;
  size_t ended_ = 0;  // steps of this execution that causality_ has
  Causality causality_;
};

class Script final : public Interruptible {
 public:
  explicit Script(const std::vector<uint32_t>& choices) : choices_(choices) {}

 private:
  size_t choose(const ReadyThreads& ready) override {
    if (steps.size() < choices_.size()) return position_of(ready, choices_[steps.size()]);
    return last_can_go_on(ready) ? position_of(ready, steps.back().thread) : 0;
  }

  const std::vector<uint32_t>& choices_;
};

}  // namespace

SearchResult explore(const Launch* launches, unsigned count, const std::vector<Region>& regions,
                     const SearchPlan& plan) {
  std::vector<std::vector<char>> before;
  for (const Region& region : regions) before.emplace_back(region.begin, region.begin + region.bytes);
  auto restore = [&] {
    for (size_t i = 0; i < regions.size(); ++i) memcpy(regions[i].begin, before[i].data(), regions[i].bytes);
  };
  SearchResult result = {};
  Checks between(regions, plan.at_each_step), at_end(regions, plan.at_end);
  Search search(plan, between);
  do {
    if (result.executions + result.cut_short == plan.limit) {
      result.outcome = Outcome::kLimit;
      break;
    }
    restore();
    search.begin_execution();
    const bool went_well = run(launches, count, search, SIZE_MAX);
    search.end_execution();
    result.steps_max = std::max(result.steps_max, (unsigned long)steps.size());
    ++(search.cut_short ? result.cut_short : result.executions);
    if (!went_well) {
      result.outcome = Outcome::kFault;
      return result;
    }
    if (search.cut_short) continue;
    if (search.check_failed || !between.holds() || !at_end.holds()) {
      result.outcome = Outcome::kCheckFailed;
      return result;
    }
  } while (search.turn_back());
  restore();
  return result;
}

bool replay(const Launch* launches, unsigned count, const std::vector<uint32_t>& choices) {
  steps.clear();
  Script script(choices);
  return run(launches, count, script, SIZE_MAX);
}

const std::vector<Step>& last_steps() { return steps; }

}  // namespace kv_host
