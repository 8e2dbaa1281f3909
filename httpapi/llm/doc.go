// Package llm is the model gateway of a node. A sandbox sends it requests of the OpenAI, Anthropic
// or Gemini API with a token of its conversation. The gateway adds the owner's key and sends them to
// the owner's endpoint, if the operator allows its host. It counts tokens and costs. Keys never
// enter a sandbox, and prompts are never logged.
//
// Four values carry a request. The request (gateway.go) embeds its grant, its answer's meter points
// to the request, and the meter makes the outcome:
//
//	token ──► authorise ──► grant     the sandbox and conversation, the endpoint, the operator's
//	          (grant.go)      │       policy, and the view of the cluster's state they are from
//	                          ▼
//	body ───► read ───────► request   its body, the model, the most output tokens
//	          (arrival.go)    │
//	          admit           │       the policy, the address, the owner's key, the charge
//	          (gateway.go)    │       (spending.enter, which judges the budgets)
//	          rewrite,        │
//	          roundTrip       ▼       to the endpoint, over connections to allowed hosts
//	answer ◄─ Read ◄─────── meter     each second stands judges the grant again
//	          (meter.go)      │
//	          Close           ▼
//	          count ◄────── outcome   what it used and cost, for the metrics and spending.leave,
//	          (outcome.go)            which ends the charge; spending reports to the cluster
//
// The charge is the estimated cost. It counts against the budgets between enter and leave, so that
// requests in progress together don't exceed them. count acts once, for the first of:
//
//   - the meter's Close. Without usage in the answer the cost is at least the charge.
//   - modifyError: the endpoint answered with an error. Such an answer has no meter and costs nothing.
//   - errorHandler: the model was not asked, or its endpoint redirects. It costs nothing.
//   - abandoned: the endpoint failed, or the client left. The cost is the charge if a connection to
//     the endpoint had the request, otherwise nothing.
package llm
