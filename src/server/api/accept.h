// From requests that were read to requests that can be run.
#pragma once

#include "base/result.h"
#include "server/api/core.h"
#include "server/api/live_request.h"
#include "server/api/requests.h"
#include "server/api/turns.h"

namespace chorus::api {

// Checks the model's name and whether everything fits, renders and tokenises. Errors name the
// parameter.
Result<AcceptedRequest> accept(const Core& core, const Call& call, const GenerateRequest& request);

// The same for a turn of a held session, which is handed over: the session is in the request.
Result<AcceptedRequest> accept_turn(Core& core, const Call& call, const GenerateRequest& request,
                                    std::shared_ptr<TakenSession> taken, Turn turn);

// Tokens that a session consumes; the session is the answer.
AcceptedRequest accept_append(Core& core, const Call& call, std::shared_ptr<TakenSession> taken,
                              Turn turn);

}  // namespace chorus::api
