package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// secretIDLook is how often, at least, a node asks when its secret id ends.
const secretIDLook = time.Hour

// errNotRenewed says that the AppRole's policy leaves the renewal of the secret id to an operator.
var errNotRenewed = errors.New("the policy does not let the node renew its secret id")

// secretID is what Vault says of a session's secret id.
type secretID struct {
	// role is the path of the AppRole, accessor names the secret id without giving it.
	role, accessor string
	// made and expires are its life. expires is zero where it does not end.
	made, expires time.Time
}

// due is when the node takes the next one: at the age, or a third of its life before its end for 0.
func (i *secretID) due(age time.Duration) time.Time {
	if age > 0 {
		return i.made.Add(age)
	}
	return i.expires.Add(-i.expires.Sub(i.made) / 3)
}

// secretIDWarning is how long before its end a secret id is warned of, one of 30 days and more.
const secretIDWarning = 7 * 24 * time.Hour

// warning is when it should have been replaced: secretIDWarning before its end, and with a shorter
// life the same share of it. A node that renews it does so before. It is zero where the secret id
// does not end.
func (i *secretID) warning() time.Time {
	if i.expires.IsZero() {
		return time.Time{}
	}
	return i.expires.Add(-min(secretIDWarning, i.expires.Sub(i.made)*7/30))
}

// registerSecretID registers what the node knows of its secret id.
func (v *Vault) registerSecretID(r prometheus.Registerer) *prometheus.CounterVec {
	factory := promauto.With(r)
	gauge := func(name, help string, at func(*secretID) time.Time) {
		factory.NewGaugeFunc(prometheus.GaugeOpts{
			Name: name, Help: help + ", in Unix seconds; +Inf if never, NaN if not known.",
		}, func() float64 {
			switch id := v.secretID.Load(); {
			case id == nil:
				return math.NaN()
			case id.expires.IsZero():
				return math.Inf(1)
			default:
				return float64(at(id).Unix())
			}
		})
	}
	gauge("bivouac_secret_store_secret_id_expiry_timestamp_seconds", "When the node's secret id in Vault ends",
		func(id *secretID) time.Time { return id.expires })
	gauge("bivouac_secret_store_secret_id_warning_timestamp_seconds",
		"When the node's secret id in Vault should have been replaced, seven days before its end or 7/30 of its life",
		(*secretID).warning)
	renewals := factory.NewCounterVec(prometheus.CounterOpts{
		Name: "bivouac_secret_store_secret_id_renewals_total",
		Help: "Renewals of the secret id by this node, by outcome; none where its policy leaves them to an operator.",
	}, []string{"outcome"})
	for _, outcome := range []string{"ok", "failed"} {
		renewals.WithLabelValues(outcome)
	}
	return renewals
}

// lookUpSecretID asks when the session's secret id ends.
func (v *Vault) lookUpSecretID(ctx context.Context, s *session) (*secretID, error) {
	id := &secretID{role: "auth/" + v.cfg.AuthMount + "/role/" + s.login.Auth.Metadata["role_name"]}
	answer, err := s.client.Logical().WriteWithContext(ctx, id.role+"/secret-id/lookup",
		map[string]any{"secret_id": s.secretID})
	if err != nil {
		return nil, explain(err)
	}
	if answer == nil { // it has ended, or was destroyed
		id.made, id.expires = time.Now(), time.Now()
		return id, nil
	}
	id.accessor, _ = answer.Data["secret_id_accessor"].(string)
	for name, at := range map[string]*time.Time{"creation_time": &id.made, "expiration_time": &id.expires} {
		text, _ := answer.Data[name].(string)
		if *at, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return nil, unavailable("vault's %s of the secret id can't be read: %v", name, err)
		}
	}
	if life, _ := answer.Data["secret_id_ttl"].(json.Number); life.String() == "0" {
		id.expires = time.Time{}
	}
	return id, nil
}

// tendSecretID looks when the secret id ends and renews it when it is due, where the policy lets it.
// It returns the session of the next one, or when to look again.
func (v *Vault) tendSecretID(ctx context.Context, s *session) (next *session, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	id, err := v.lookUpSecretID(ctx, s)
	v.secretID.Store(id)
	if err != nil {
		if isDenied(err) {
			v.log.Warn("when the secret id ends is not known: write deploy/vault/bivouac.hcl again", "error", err)
		}
		return nil, secretIDLook
	}
	if id.expires.IsZero() {
		return nil, secretIDLook
	}
	if wait = time.Until(id.due(v.cfg.renewAge)); wait > 0 {
		return nil, min(wait, secretIDLook)
	}
	next, err = v.renewSecretID(ctx, s, id)
	attrs := []any{"path", v.cfg.SecretIDFile, "expires", id.expires}
	switch {
	case err == nil:
		v.renewals.WithLabelValues("ok").Inc()
		v.log.Info("secret id renewed", "path", v.cfg.SecretIDFile, "accessor", next.accessor,
			"former_accessor", id.accessor)
		return next, 0
	case errors.Is(err, errNotRenewed):
		v.log.Warn("secret id expires soon: write another into its file (bivouac runbook secret-id)", attrs...)
	case ctx.Err() == nil:
		v.renewals.WithLabelValues("failed").Inc()
		v.log.Error("renewing the secret id failed (bivouac runbook secret-id)", append(attrs, "error", err)...)
	}
	return nil, max(time.Second, min(time.Until(id.expires)/10, secretIDLook))
}

// renewSecretID makes the next secret id, logs in with it, writes its file and destroys the former.
// It does so only for an AppRole that is bound to addresses: there a copied one is of no use.
func (v *Vault) renewSecretID(ctx context.Context, s *session, former *secretID) (*session, error) {
	role, err := s.client.Logical().ReadWithContext(ctx, former.role)
	switch {
	case isDenied(err), v.cfg.Replace == nil:
		return nil, errNotRenewed
	case err != nil:
		return nil, explain(err)
	case role == nil:
		return nil, fmt.Errorf("%w: the AppRole is gone", ErrUnavailable)
	case len(words(role.Data["secret_id_bound_cidrs"])) == 0:
		return nil, fmt.Errorf("the AppRole is bound to no address: set its secret_id_bound_cidrs")
	}
	made, err := s.client.Logical().WriteWithContext(ctx, former.role+"/secret-id", nil)
	if err != nil || made == nil {
		return nil, errors.Join(explain(err), fmt.Errorf("%w: vault made no secret id", ErrUnavailable))
	}
	text, _ := made.Data["secret_id"].(string)
	accessor, _ := made.Data["secret_id_accessor"].(string)
	next, err := v.logInWith(ctx, text)
	if err == nil {
		err = v.cfg.Replace(v.cfg.SecretIDFile, []byte(text+"\n"), 0o600)
	}
	if err == nil {
		next.files, err = v.files()
	}
	if err != nil {
		v.end(next)
		// A file that names the next one keeps it: writing may fail after the file is in its place.
		if named, unread := readID(v.cfg.SecretIDFile); unread != nil || named == text {
			return nil, err
		}
		return nil, errors.Join(err, v.destroySecretID(ctx, s, former.role, accessor))
	}
	next.accessor = accessor
	if former.accessor == "" { // it has ended
		return next, nil
	}
	if err := v.destroySecretID(ctx, next, former.role, former.accessor); err != nil {
		v.log.Error("the former secret id is not destroyed: it ends by itself", "former_accessor",
			former.accessor, "error", err)
	}
	return next, nil
}

func (v *Vault) destroySecretID(ctx context.Context, s *session, role, accessor string) error {
	_, err := s.client.Logical().WriteWithContext(ctx, role+"/secret-id-accessor/destroy",
		map[string]any{"secret_id_accessor": accessor})
	return explain(err)
}
