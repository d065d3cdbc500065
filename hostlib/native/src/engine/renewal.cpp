// SPDX-License-Identifier: Apache-2.0
#include "engine/renewal.hpp"

namespace paralet {

bool Renewal::on(Event event) {
  const auto change = [this](State from, State to) {
    if (state != from) return false;
    state = to;
    return true;
  };
  switch (event) {
    case Event::kConnected:
      return change(State::kAsked, State::kConnected);
    case Event::kPeerConnected:
      return change(State::kConnected, State::kDraining);
    case Event::kDrained:
      return change(State::kDraining, State::kDrained) || change(State::kPeerDrained, State::kFinished);
    case Event::kPeerDrained:
      return change(State::kDraining, State::kPeerDrained) || change(State::kDrained, State::kFinished);
  }
  return false;
}

}  // namespace paralet
