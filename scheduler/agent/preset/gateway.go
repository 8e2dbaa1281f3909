package preset

// What the model gateway of a node says to the agent servers, and is asked by them.
const (
	// HeaderPlace has the place of a request that waits for its server's slot: 1 is the next. A request
	// has it, with any value, that wants to be told.
	HeaderPlace = "X-Bivouac-Place"
	// HeaderLimit says whose limit a request exceeded: the endpoint's own, where it answers 429, one of
	// the user's on this node, or one of the node's for all users.
	HeaderLimit   = "X-Bivouac-Limit"
	LimitEndpoint = "endpoint"
	LimitUser     = "user"
	LimitNode     = "node"
	// The code of an error is CodePrefix and its reason. Agent servers know these reasons.
	CodePrefix   = "bivouac_"
	ReasonToken  = "token"
	ReasonBusy   = "busy"
	ReasonFailed = "failed"
)
