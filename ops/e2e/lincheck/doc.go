// Package lincheck checks the history of clients' requests and responses under faults: whether it
// is linearizable (each request takes effect at one moment between its call and its return;
// checked by porcupine), and whether stale reads are only stale.
//
// A request with an unknown outcome may take effect at any time after its call, or never. A
// request that was rejected with the promise that it had no effect must have none: the record
// trusts the API's responses, and so tests them too.
//
// Each object (a user's settings, a sandbox) is checked by itself. That is sound because
// linearizability is local. Objects that are listed together (a user's conversations, a set of
// specs) are one object: a listing reads all of them at one moment.
package lincheck
