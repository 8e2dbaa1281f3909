package operators

import (
	"maps"
	"slices"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

func newModelUsageBody(u fsm.ModelUsage) wire.ModelUsage {
	b := wire.ModelUsage{
		Requests:     u.Requests,
		Errors:       u.Errors,
		InputTokens:  u.Input,
		OutputTokens: u.Output,
		CachedTokens: u.Cached,
		Cost:         wire.Dollars(u.Cost),
	}
	if u.Requests > 0 {
		b.MeanSeconds = float64(u.Milliseconds) / float64(u.Requests) / 1000
	}
	return b
}

// The values of the query by.
const (
	byUser         = "user"
	byModel        = "model"
	byConversation = "conversation"
)

// UsageList handles GET /api/v1/operator/usage.
func (s *Server) UsageList(c *request.Call) (response.Response, error) {
	by := c.Query.Enum("by", byUser, []string{byUser, byModel, byConversation})
	user := decode.OrZero(c.Query.Text("user", fsm.MaxName))
	token, limit := request.PageIDOf(c.Query), request.LimitOf(c.Query)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	if by == byConversation {
		if err := c.Operate(v, "list usage", "", user); err != nil {
			return response.Response{}, err
		}
	}
	var items []wire.ModelUsage
	var next string
	switch by {
	case byModel:
		items, next = request.PageAfter(usageByModel(v, user), func(b wire.ModelUsage) string { return *b.Model },
			token, limit)
	case byConversation:
		var rows []*fsm.Conversation
		rows, next = v.OwnedConversations(user, fsm.Page{After: token, Limit: limit})
		for _, row := range rows {
			if row.Models.Requests > 0 {
				b := newModelUsageBody(row.Models)
				b.UserID, b.ConversationID, b.Model = &row.UserID, &row.ID, row.LLMModel
				items = append(items, b)
			}
		}
	default:
		items, next = request.PageAfter(usageByUser(v, user, time.Now()),
			func(b wire.ModelUsage) string { return *b.UserID }, token, limit)
	}
	return response.OK(wire.NewPage(items, next))
}

// usageByUser lists the users who used models, or one of them, by name.
func usageByUser(v *fsm.View, user string, now time.Time) (list []wire.ModelUsage) {
	for _, u := range v.Users() {
		if u.Models == nil || user != "" && u.ID != user {
			continue
		}
		b := newModelUsageBody(u.Models.Total)
		b.UserID, b.CostToday = &u.ID, new(wire.Dollars(u.SpentOn(fsm.DayOf(now))))
		list = append(list, b)
	}
	return list
}

// usageByModel lists the models that all users, or one, used, by name.
func usageByModel(v *fsm.View, user string) (list []wire.ModelUsage) {
	sums := map[string]fsm.ModelUsage{}
	for _, u := range v.Users() {
		if u.Models == nil || user != "" && u.ID != user {
			continue
		}
		for _, one := range u.Models.ByModel {
			sums[one.Model] = sums[one.Model].Plus(one.Usage)
		}
	}
	for _, model := range slices.Sorted(maps.Keys(sums)) {
		b := newModelUsageBody(sums[model])
		b.Model = &model
		list = append(list, b)
	}
	return list
}
