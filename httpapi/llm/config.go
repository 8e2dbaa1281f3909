package llm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// Config configures the gateway of one node. Start from DefaultConfig.
type Config struct {
	// MaxBody bounds a request's body, UserBodies those of one user's requests in progress, AllBodies
	// those of all, in bytes. The first 64 KiB of a body do not count.
	MaxBody, UserBodies, AllBodies int64
	// AllAnswers bounds what is kept of the answers in progress, in bytes; a user has a quarter.
	// Without room the usage of an answer may not be found.
	AllAnswers int64
	// BodyPause ends a request of whose body no byte comes. WriteStall ends one whose client takes
	// nothing of the answer.
	BodyPause, WriteStall time.Duration
	// MaxDuration bounds a request, its answer included. HeaderTimeout bounds the wait for the
	// header of an answer that is not streamed, which comes when the model is done.
	MaxDuration, HeaderTimeout time.Duration
	// DialTimeout bounds connecting to an endpoint.
	DialTimeout time.Duration
	// UserRequests bounds the requests of one user in progress on a node.
	UserRequests int
	// MaxStale is how long requests are served on a node that has no leader.
	MaxStale time.Duration
	// ReportEvery is the interval at which the costs of a node go to the cluster.
	ReportEvery time.Duration
	// PlaceEvery is how often a request that waits for a server's slot is told its place.
	PlaceEvery time.Duration
	// Clock tells the day of a budget.
	Clock func() time.Time
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		MaxBody: 32 << 20, UserBodies: 64 << 20, AllBodies: 256 << 20, AllAnswers: 64 << 20,
		BodyPause: 10 * time.Second, WriteStall: time.Minute, MaxDuration: time.Hour, HeaderTimeout: 20 * time.Minute,
		DialTimeout:  10 * time.Second,
		UserRequests: 64, MaxStale: 5 * time.Minute, ReportEvery: 5 * time.Second,
		PlaceEvery: 5 * time.Second, Clock: time.Now,
	}
}

// Validate returns an error for an invalid field.
func (c Config) Validate() error {
	for name, d := range map[string]time.Duration{"MaxDuration": c.MaxDuration, "HeaderTimeout": c.HeaderTimeout,
		"DialTimeout": c.DialTimeout, "MaxStale": c.MaxStale, "ReportEvery": c.ReportEvery, "PlaceEvery": c.PlaceEvery,
		"BodyPause": c.BodyPause, "WriteStall": c.WriteStall} {
		if d <= 0 {
			return fmt.Errorf("LLM.%s must be positive, is %s", name, d)
		}
	}
	if c.Clock == nil {
		return errors.New("LLM.Clock is required")
	}
	if c.MaxBody < 1 || c.UserBodies < c.MaxBody || c.AllBodies < c.UserBodies || c.UserRequests < 1 || c.AllAnswers < 1 {
		return errors.New("LLM.MaxBody, UserRequests and AllAnswers must be positive, UserBodies not below MaxBody, " +
			"AllBodies not below UserBodies")
	}
	return nil
}

// Server is what the gateway needs of the API server. All fields are required.
type Server struct {
	Cluster Cluster
	// Secret reads a member of an entry of the secret store.
	Secret func(ctx context.Context, ref fsm.SecretRef, member string) (string, error)
	// AskCluster reports whether the cluster may be asked about what this node does not know.
	AskCluster func(ctx context.Context) bool
	// Admitted is called for every request with a good credential of a sandbox. It may refuse one too
	// many.
	Admitted func(ctx context.Context, sandbox string) error
	// Informs reports whether informational responses reach the client of a request, as far as it shows.
	Informs func(*http.Request) bool
	// Info returns a request's entry in the access log, which the gateway fills in.
	Info       func(context.Context) *proxy.RequestInfo
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Cluster reads and changes the replicated state.
type Cluster interface {
	View(ctx context.Context, c cluster.Consistency) (*fsm.View, error)
	Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error)
	Status() cluster.Status
}
